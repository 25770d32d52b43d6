"""The relay as a consumer of fencing tokens: whether a fenced event may be written, inside its transaction.

The lock is read in the same transaction that writes the event, so no grant can come between. Every fenced write of a
coordinate is remembered with its token: that is what a strict fence of a later one looks at.
"""

from __future__ import annotations

from posthouse.model.errors import PosthouseError, error
from posthouse.model.fence import FenceTag, judge_fence
from posthouse.relay.store.interface import EventRow, Unit


def pass_fence(unit: Unit, row: EventRow, fence: FenceTag) -> PosthouseError | None:
    """Note a fenced write that may be written, or return why it may not."""
    address = row.address or b""
    entry = unit.find_lock(row.mesh, fence.resource)
    last = unit.find_fence_write(row.mesh, fence.resource, address) if fence.is_strict else None
    code = judge_fence(fence, row.event.pubkey, None if entry is None else entry.row, unit.boot_ns, last)
    if code is not None:
        return error(code, resource=fence.resource)
    unit.save_fence_write(row.mesh, fence.resource, address, fence.token)
    return None
