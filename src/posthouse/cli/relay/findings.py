"""How findings about a store are told; any finding makes the exit code 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posthouse.cli.console import Output
from posthouse.model.codes.spec import Exit


def answer_findings(output: Output, path: Path, findings: Sequence[str]) -> int:
    """Show what is wrong with a store, or that nothing is."""
    shown = "\n".join(findings) if findings else f"{path}: nothing is wrong"
    output.answer({"store": path, "findings": list(findings)}, shown)
    return Exit.REFUSED if findings else Exit.OK
