"""B1: what is judged on the event loop before the transaction. Mesh, membership, access, times, rate.

A refusal here is not final: an event whose id is known gets its first answer again, whatever has changed since, and
costs no rate. Only the transaction knows the ids, so the refusal travels there with the job.
"""

from __future__ import annotations

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event_structure import check_times
from posthouse.model.kinds import CONFIRMATION, is_ephemeral
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, SECOND_NS
from posthouse.relay.accept.buckets import Buckets
from posthouse.relay.accept.job import Job
from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.meshes.rights import Right
from posthouse.relay.store.interface import EventRow


class Judge:
    """Decides whether an event may be written now."""

    def __init__(self, meshes: Meshes, clock: Clock, events: Buckets, ephemerals: Buckets) -> None:
        self._meshes = meshes
        self._clock = clock
        self._events = events
        self._ephemerals = ephemerals
        self._wall_ns = 0
        self._boot_ns = 0

    def begin(self) -> None:
        """Read the clocks for the jobs that follow at once."""
        self._wall_ns = self._clock.wall_ns()
        self._boot_ns = self._clock.boot_ns()

    def judge(self, job: Job) -> None:
        """Leave the refusal of a checked job in it, if there is one; else charge the sender."""
        row = job.row
        if row is None:
            return
        job.refusal = self._refusal(row)
        job.charged = job.refusal is None

    def give_back(self, job: Job) -> None:
        """Return what a job was charged: it was a retry."""
        if job.charged and job.row is not None:
            job.charged = False
            self._buckets(job.row).give_back(job.row.event.pubkey)

    def _refusal(self, row: EventRow) -> PosthouseError | None:
        event = row.event
        right = Right.READ if event.kind == CONFIRMATION else Right.WRITE
        refusal = self._meshes.missing(event.pubkey, row.mesh, right)
        if refusal is not None:
            return refusal
        if row.expiration_s is not None or event.created_at_ns > self._wall_ns + CREATED_AT_MAX_AHEAD_NS:
            try:
                check_times(event, self._wall_ns)
            except PosthouseError as late:
                return late
        return self._charge(row)

    def _charge(self, row: EventRow) -> PosthouseError | None:
        buckets = self._buckets(row)
        wait_ns = buckets.take(row.event.pubkey, self._boot_ns)
        if not wait_ns:
            return None
        wait_s = -(-wait_ns // (SECOND_NS // 1000)) / 1000
        return error("rate_limited", key=row.event.pubkey, rate=buckets.rate.per_s, retry_after_s=wait_s)

    def _buckets(self, row: EventRow) -> Buckets:
        return self._ephemerals if is_ephemeral(row.event.kind) else self._events
