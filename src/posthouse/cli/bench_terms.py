"""What the benches of whole parts share: where they measure, how much, and the table of what is required."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

BenchDir = Annotated[
    Path | None, Parameter(name="--dir", help="Where to measure; the disk there decides. Removed afterwards.")
]
Quick = Annotated[bool, Parameter(negative=(), show_default=False, help="A first look, with far less of all.")]


def show_required(report: dict[str, Any]) -> RenderableType:
    """Return every figure that something is required of, with its bound and whether it is met."""
    rows = [
        (each["name"], f"{each['value']:,}", f"{each['sense']} {each['bound']:,}", "yes" if each["met"] else "NO")
        for each in report["required"]
    ]
    return table(("measured", "value", "required", "met"), rows)
