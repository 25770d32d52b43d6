"""The lake of this host, for commands that ask it what a relay has pruned; nothing of it is loaded before that.

A host without a lake, or without the library that reads one, simply has no long memory.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.cli.settings import load

if TYPE_CHECKING:
    from posthouse.pipeline.archive import Lookup


def find_memory() -> Lookup | None:
    """Return the lake that the settings name, if there is one with the history of anything."""
    path = Path(str(load()["pipeline.lake"].value)).expanduser()
    tables = ("bronze_epochs", "bronze_journal", "bronze_events")
    if not all((path / table / "_delta_log").is_dir() for table in tables) or find_spec("deltalake") is None:
        return None
    from posthouse.pipeline.archive import Lookup
    from posthouse.pipeline.lake import Lake

    return Lookup(Lake(path))
