"""Rows of queues as people read them; content is never among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.cli.console import table
from posthouse.cli.message.times import moment, short

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client import QueueRow

_COLUMNS = ("recipient", "id", "sender", "state", "attempts", "queued", "closed", "reason")


def shown_rows(rows: Sequence[QueueRow]) -> RenderableType:
    """Lay out messages in queues."""
    return table(
        _COLUMNS,
        [
            (
                short(row.recipient),
                row.id,
                short(row.sender),
                row.state,
                row.attempts,
                moment(row.queued_at_ns),
                moment(row.closed_at_ns),
                row.reason or "",
            )
            for row in rows
        ],
    )
