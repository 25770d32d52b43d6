"""B2: what can only be judged inside the transaction, against rows that nobody else can change meanwhile."""

from __future__ import annotations

from posthouse.model.errors import PosthouseError, error
from posthouse.model.fence import read_fence_tag
from posthouse.model.kinds import is_replacing
from posthouse.relay.store.interface import EventRow, Unit


def claim(_unit: Unit, row: EventRow) -> PosthouseError | None:
    """Return why an event that is new cannot be written, or None."""
    if not is_replacing(row.event.kind):
        return None
    fence = read_fence_tag(row.event)
    if fence is None:
        return None
    return error("fence_unknown", resource=fence.resource)  # no lock was ever granted here
