"""`posthouse bus metrics`: how many messages, in which state, on which subject."""

from __future__ import annotations

from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.console import PLAIN, Output, table


def metrics(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Count the messages the index knows, by status and by subject.

    For example:

        posthouse bus metrics
        posthouse bus metrics --json
    """
    import msgspec

    found = visit(directory, output, lambda bus: bus.metrics())
    rows = [("total", found.total_messages)]
    rows += [(f"status {name}", count) for name, count in sorted(found.by_status.items())]
    rows += [(f"subject {name}", count) for name, count in sorted(found.by_subject.items())]
    output.answer(msgspec.to_builtins(found), table(("messages", "count"), rows))
