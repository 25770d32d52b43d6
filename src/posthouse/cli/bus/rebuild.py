"""`posthouse bus rebuild`: make the index anew from the mailbox files."""

from __future__ import annotations

from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.console import PLAIN, Output


def rebuild(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Rebuild the index from every mailbox on disk; the files are the truth.

    For example:

        posthouse bus rebuild
        posthouse bus rebuild --json
    """
    count = visit(directory, output, lambda bus: bus.rebuild_index())
    output.answer({"messages": count}, f"{count} messages indexed")
