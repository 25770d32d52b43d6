"""Quotas of meshes inside the transaction: a mesh with limits accepts no event that exceeds them.

One object serves one group. The usage of a mesh is read once per group, and only if the mesh has a limit; the counters
themselves change with the events. A full mesh may be set to make room by dropping its oldest events that nothing needs.
Deletions may exceed the limits by a tenth, because they make room; confirmations and receipts are always accepted,
because queues would not drain without them.
"""

from __future__ import annotations

from collections.abc import Mapping

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import DELETION
from posthouse.model.mesh_limits import MeshLimits, OnFull
from posthouse.relay.store.event_rows import EventRow, Usage
from posthouse.relay.store.protocol import Unit

_DELETION_SHARE = 10  # a tenth of the limits is for deletions


class Quotas:
    """The room that a group takes."""

    def __init__(self, unit: Unit, limited: Mapping[str, MeshLimits]) -> None:
        self._unit = unit
        self._limited = limited
        self._usage: dict[str, Usage] = {}

    def take(self, row: EventRow) -> PosthouseError | None:
        """Take the room of a new event, or return mesh_full."""
        limits = self._limited.get(row.mesh)
        if limits is None or not limits.is_bounded:
            return None
        usage = self._usage.get(row.mesh)
        if usage is None:
            usage = self._unit.mesh_usage(row.mesh)
        wanted = Usage(usage.events + 1, usage.bytes + len(row.raw))
        excess = _excess(wanted, limits, row.event.kind)
        if excess is not None and limits.on_full is OnFull.DROP_OLDEST:
            freed = self._unit.drop_oldest(row.mesh, excess)
            wanted = Usage(wanted.events - freed.events, wanted.bytes - freed.bytes)
            excess = _excess(wanted, limits, row.event.kind)
        if excess is not None:
            return error("mesh_full", mesh=row.mesh, events=usage.events, bytes=usage.bytes)
        self._usage[row.mesh] = wanted
        return None


def _excess(wanted: Usage, limits: MeshLimits, kind: int) -> Usage | None:
    """Return by how much a usage is above the limits, None if it is within them."""
    events = _above(wanted.events, limits.max_events, kind)
    bytes_ = _above(wanted.bytes, limits.max_bytes, kind)
    return Usage(events, bytes_) if events or bytes_ else None


def _above(used: int, most: int | None, kind: int) -> int:
    if most is None:
        return 0
    share = most // _DELETION_SHARE if kind == DELETION else 0
    return max(0, used - most - share)
