"""B2: what can only be judged inside the transaction, against rows that nobody else can change meanwhile."""

from __future__ import annotations

from posthouse.model.errors import PosthouseError
from posthouse.model.fence import read_fence_tag
from posthouse.model.kinds import is_replacing
from posthouse.relay.locks.fences import pass_fence
from posthouse.relay.store.interface import EventRow, Unit


def claim(unit: Unit, row: EventRow) -> PosthouseError | None:
    """Return why an event that is new cannot be written, or None."""
    if not is_replacing(row.event.kind):
        return None
    fence = read_fence_tag(row.event)
    return None if fence is None else pass_fence(unit, row, fence)
