"""Authorize: the stage that decides whether a verified event may be written now, and charges rates for it.

Rights come from the registry of meshes, rates are token buckets. A refusal is not final: an event whose id is known
gets its first answer again and costs no rate. Only the transaction knows the ids, so the refusal goes there with the
event.
"""

from __future__ import annotations

from collections.abc import Sequence

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import DELETION, READER_KINDS, RESERVED_KINDS, Event, check_times
from posthouse.model.fence_rules import missing_fence
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, DAY_S, INT64_MAX, MILLISECOND_NS, SECOND_NS
from posthouse.model.rate import Rate
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.accept.rates import MeshRates, RateBuckets, RateShare, Strangers
from posthouse.relay.accept.submission import Job
from posthouse.relay.store.event_rows import EventRow

_STRANGER_CODES = frozenset({"not_member", "right_missing", "mesh_unknown", "signature_invalid"})


class Authorizer:
    """Decides whether events may be written now, and charges the rate of their senders."""

    def __init__(
        self,
        meshes: Meshes,
        clock: Clock,
        events: RateBuckets,
        ephemerals: RateBuckets,
        share: RateShare,
        relay: str = "",
        known_ids_ns: int = INT64_MAX,
    ) -> None:
        self.strangers = Strangers(clock, share)
        #: node id of the relay, which may delete events in every mesh
        self._relay = relay
        self.meshes = meshes
        self._clock = clock
        self._events = events
        self._ephemerals = ephemerals
        self._mesh_rates = MeshRates(share)
        self._known_ids_ns = known_ids_ns

    def set_rates(self, events: Rate, ephemerals: Rate) -> None:
        """Apply other rates from now on."""
        self._events.whole_rate, self._ephemerals.whole_rate = events, ephemerals

    def authorize(self, jobs: Sequence[Job]) -> None:
        """Set the refusal of each verified job that may not be written; charge the sender for all other jobs."""
        wall_ns, boot_ns = self._clock.wall_ns(), self._clock.boot_ns()
        for job in jobs:
            row = job.row
            if row is None:
                if job.refusal is not None and job.refusal.code in _STRANGER_CODES:
                    self.strangers.charge(job.submission.submitter.payer)
            elif row.mirrored_by is not None:
                job.refusal = self._mirror_error(row) or _time_error(row, wall_ns)
            elif not self._is_of_relay(row.event):
                job.refusal = (
                    self._right_error(row)
                    or _kind_error(row)
                    or _time_error(row, wall_ns)
                    or self._age_error(row, wall_ns)
                    or self._fence_rule_error(row)
                    or self._charge(row, boot_ns)
                    or (self._charge_mesh(row, boot_ns) if row.mesh in self.meshes.limited else None)
                )
                job.is_charged = job.refusal is None

    def authorize_again(self, jobs: Sequence[Job]) -> None:
        """Authorize verified jobs again, because another relay has changed a mesh in the meantime."""
        verified = [job for job in jobs if job.row is not None]
        for job in verified:
            self.give_back(job)
        self.authorize(verified)

    def refuse_retired(self, jobs: Sequence[Job]) -> None:
        """Set the refusal of events whose author was retired after they were authorized; inside the transaction."""
        for job in jobs:
            if job.row is not None and job.refusal is None:
                job.refusal = self.meshes.key_error(job.row.event.pubkey)

    def early_error(self, event: Event, mesh: str) -> PosthouseError | None:
        """Return why the author that an event claims may not write it, before the signature proves the author.

        Verifier threads call it, so it reads the registry and caches nothing; `authorize` has the last word.
        """
        if self._is_of_relay(event):
            return None
        return self.meshes.early_error(event.pubkey, mesh, _right_for(event.kind))

    def _is_of_relay(self, event: Event) -> bool:
        """Return True for a deletion by the relay's key: an administrator of the relay asked for it."""
        return event.pubkey == self._relay and event.kind == DELETION

    def give_back(self, job: Job) -> None:
        """Return the token of a job that turned out to be free, such as a retry."""
        if job.is_charged and job.row is not None:
            job.is_charged = False
            self._buckets(job.row).give_back(job.row.event.pubkey)
            if (limits := self.meshes.limited.get(job.row.mesh)) is not None:
                self._mesh_rates.give_back(job.row.mesh, limits, len(job.row.raw))

    def _right_error(self, row: EventRow) -> PosthouseError | None:
        return self.meshes.authorization_error(row.event.pubkey, row.mesh, _right_for(row.event.kind))

    def _mirror_error(self, row: EventRow) -> PosthouseError | None:
        """Return why an event of another relay may not be written; the rights of its author do not count here."""
        if row.is_ephemeral:
            return error("mirror_refused", reason="it is ephemeral")
        return self.meshes.mesh_error(row.mesh)

    def _age_error(self, row: EventRow, wall_ns: int) -> PosthouseError | None:
        """Return the refusal of an event that is so old that its id may be forgotten, or None."""
        age_ns = wall_ns - row.event.created_at_ns
        if age_ns <= self._known_ids_ns:
            return None
        return error("too_old", days=age_ns // (DAY_S * SECOND_NS), limit=self._known_ids_ns // (DAY_S * SECOND_NS))

    def _fence_rule_error(self, row: EventRow) -> PosthouseError | None:
        """Return the refusal of an event without the fence that a rule of the mesh demands, or None."""
        if row.address is None:
            return None
        rules = self.meshes.find(row.mesh).fence_rules
        resource = missing_fence(rules.values(), row.event.kind, row.event.d, row.fence) if rules else None
        return None if resource is None else error("fence_required", mesh=row.mesh, resource=resource)

    def _charge(self, row: EventRow, boot_ns: int) -> PosthouseError | None:
        buckets = self._buckets(row)
        wait_ns = buckets.take(row.event.pubkey, boot_ns)
        if not wait_ns:
            return None
        wait_s = -(-wait_ns // MILLISECOND_NS) / 1000
        return error("rate_limited", key=row.event.pubkey, rate=buckets.rate.per_s, retry_after_s=wait_s)

    def _charge_mesh(self, row: EventRow, boot_ns: int) -> PosthouseError | None:
        refusal = self._mesh_rates.charge(row.mesh, self.meshes.limited[row.mesh], len(row.raw), boot_ns)
        if refusal is not None:
            self._buckets(row).give_back(row.event.pubkey)
        return refusal

    def _buckets(self, row: EventRow) -> RateBuckets:
        return self._ephemerals if row.is_ephemeral else self._events


def _kind_error(row: EventRow) -> PosthouseError | None:
    kind = row.event.kind
    meaning = RESERVED_KINDS.get(kind)
    return None if meaning is None else error("kind_reserved", kind=kind, meaning=meaning)


def _right_for(kind: int) -> Right:
    return Right.READ if kind in READER_KINDS else Right.WRITE


def _time_error(row: EventRow, wall_ns: int) -> PosthouseError | None:
    """Return why an event is too early or has expired, or None."""
    if row.expiration_s is None and row.event.created_at_ns <= wall_ns + CREATED_AT_MAX_AHEAD_NS:
        return None
    try:
        check_times(row.event, wall_ns)
    except PosthouseError as failure:
        return failure
    return None
