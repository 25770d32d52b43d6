"""Accept deletions inside the transaction: erase the events they name, and block those that arrive later.

An author's deletion removes only that author's events; one that is signed with the relay's key removes any, because an
administrator asked for it. An id that is not known yet is blocked for that author, a coordinate up to the creation time
of the deletion. Events of other authors, deletions, confirmations and receipts stay. A deletion takes effect when it is
accepted: one that was stored by an older relay has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from posthouse.model.deletion import BY_TAG, LASTING_KINDS, Deletion
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import INT64_MAX
from posthouse.relay.accept.commit import Decision, Repeat
from posthouse.relay.accept.quotas import Quotas
from posthouse.relay.accept.submission import CommitEffects
from posthouse.relay.store.event_rows import ContentRow, EventRow, address_term
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import Accepted, DeletionAccepted

VERSIONS_AT_ONCE = 200  # of one coordinate; housekeeping erases the rest, so that other writes do not wait


class Deletions:
    """The deletions of one group. They run last, so that they find the events that the group itself wrote."""

    #: duplicates are detected by their event id only
    check_ids_through_ns = INT64_MAX

    def __init__(self, unit: Unit, relay: str, effects: CommitEffects, quotas: Quotas | None) -> None:
        self._unit = unit
        self._quotas = quotas
        self._relay = relay
        self._effects = effects
        self._fresh: set[str] = set()

    def decide(self, row: EventRow, known_seq: int | None, refusal: PosthouseError | None) -> Decision:
        """Return the row of a new deletion, unless it would show an event to nodes that cannot read it."""
        if known_seq is not None:
            return Accepted(row.event.id, known_seq, True)
        if row.event.id in self._fresh:
            return Repeat(row.event.id)
        if refusal is None and row.event.pubkey != self._relay:
            own = [each for each in self._unit.find_contents(_deletion(row).ids) if each.author == row.event.pubkey]
            refusal = next(filter(None, (_mismatch(row, each) for each in own)), None)
        if refusal is None and self._quotas is not None:
            refusal = self._quotas.take(row)
        if refusal is not None:
            return refusal
        self._fresh.add(row.event.id)
        return row

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> list[Accepted]:
        """Erase the events that the deletions name, block those not here yet; return the answers in order."""
        return [self._write(row, seq) for row, seq in accepted]

    def _write(self, row: EventRow, seq: int) -> Accepted:
        deletion, event = _deletion(row), row.event
        named = self._unit.find_contents(deletion.ids)
        found = [each for each in named if self._may_erase(row, each)]
        if event.pubkey != self._relay:
            unknown = set(deletion.ids) - {each.id for each in named}
            if unknown:
                self._unit.block_ids(sorted(unknown), event.pubkey, event.created_at_ns)
            for coordinate in deletion.coordinates:
                found += self._delete_address(address_term(coordinate), event.created_at_ns)
        actor, reason = event.pubkey, "deleted"
        if event.pubkey == self._relay:
            actor, reason = event.value(BY_TAG) or self._relay, f"admin: {event.content}" if event.content else "admin"
        erased = {each.seq: each for each in found if not each.is_erased}
        self._effects.closed += self._unit.erase(erased.values(), actor, reason)
        self._effects.queued[:] = [each for each in self._effects.queued if each.seq not in erased]
        return DeletionAccepted(event.id, seq, False, sum([each.raw is not None for each in erased.values()]))

    def _delete_address(self, address: bytes, through_ns: int) -> list[ContentRow]:
        """Block a coordinate up to a time; return its newest versions: older ones must never become current."""
        versions = self._unit.find_versions(address, through_ns, VERSIONS_AT_ONCE + 1)
        self._unit.delete_address(address, through_ns, is_pending=len(versions) > VERSIONS_AT_ONCE)
        return versions[:VERSIONS_AT_ONCE]

    def _may_erase(self, row: EventRow, target: ContentRow) -> bool:
        if row.event.pubkey == self._relay:
            return True
        return (
            target.author == row.event.pubkey
            and target.kind not in LASTING_KINDS
            and (target.mesh, target.recipient) == (row.mesh, row.recipient)
        )


def _mismatch(row: EventRow, target: ContentRow) -> PosthouseError | None:
    """Return why a deletion cannot name an event of its author: different nodes would see the two."""
    if target.mesh != row.mesh:
        return error("deletion_mismatch", id=target.id, reason=f"it is in the mesh {target.mesh}")
    if target.recipient == row.recipient or target.kind in LASTING_KINDS:
        return None
    reason = "it is no direct message" if target.recipient is None else f"it is a direct message to {target.recipient}"
    return error("deletion_mismatch", id=target.id, reason=reason)


def _deletion(row: EventRow) -> Deletion:
    assert isinstance(row.payload, Deletion)
    return row.payload
