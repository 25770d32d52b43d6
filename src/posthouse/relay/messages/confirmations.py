"""Accept confirmations inside the transaction: each id counts for itself, and the answer lists the outcome of each.

A confirmation closes deliveries of its author that are open or parked; never one that has expired, was purged or
blocked, or was confirmed before. A confirmation without any effect is not stored. A copy for the sender is kept
until the sender provably read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import INT64_MAX
from posthouse.model.message import Confirmation
from posthouse.relay.accept.commit import Decision, Repeat
from posthouse.relay.accept.submission import CommitEffects, Confirmed
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.event_rows import ConfirmationRecord, EventRow
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import Accepted, ConfirmationAccepted, Ignored
from posthouse.relay.wire.delivery_rows import OPEN, PARKED, ClosedDeliveries, DeliveryRow
from posthouse.relay.wire.frames import command_text

_encode = msgspec.json.Encoder().encode


class _Item(msgspec.Struct, frozen=True, gc=False):
    """A confirmed message in the CONFIRMED command."""

    id: str
    was_stored: bool
    at_ns: int


class _Effect(NamedTuple):
    #: queue id of the sender
    sender: int
    rows: list[DeliveryRow]
    ignored: tuple[Ignored, ...]


class Confirmations:
    """The confirmations of one group."""

    #: duplicates are detected by their event id only
    check_ids_through_ns = INT64_MAX

    def __init__(self, unit: Unit, settings: DeliverySettings, effects: CommitEffects) -> None:
        self._unit = unit
        self._settings = settings
        self._commit_effects = effects
        #: event id -> what the confirmation does
        self._effects: dict[str, _Effect] = {}

    def decide(self, row: EventRow, known_seq: int | None, refusal: PosthouseError | None) -> Decision:
        """Close the deliveries that a confirmation names and return its row with the journal record complete.

        A confirmation with an effect is free, so a refusal for the rate counts only for one without.
        """
        if known_seq is not None:
            return Accepted(row.event.id, known_seq, True)
        if row.event.id in self._effects:
            return Repeat(row.event.id)
        if refusal is not None and refusal.code != "rate_limited":
            return refusal
        effect = self._close(row, _confirmation(row))
        if not effect.rows:
            return refusal or error("confirmation_without_effect", id=row.event.id, ignored=_shown(effect.ignored))
        self._effects[row.event.id] = effect
        record = ConfirmationRecord(row.size, _confirmation(row).sender, tuple([each.id for each in effect.rows]))
        return msgspec.structs.replace(row, record_body=_encode(record).decode())

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> list[Accepted]:
        """Record which deliveries were closed and keep a copy for each sender; return the answers in order."""
        return [self._write(row, seq, self._effects[row.event.id]) for row, seq in accepted]

    def _close(self, row: EventRow, confirmation: Confirmation) -> _Effect:
        deliveries, before_ns = self._unit.deliveries, self._unit.now_ns - self._settings.queue_ttl_ns
        queues = deliveries.queues(row.mesh, (confirmation.reader, confirmation.sender))
        reader, sender = queues.get(confirmation.reader), queues.get(confirmation.sender)
        sender_id = 0 if sender is None else sender.queue_id
        ids = tuple(dict.fromkeys(confirmation.ids))
        found = {} if reader is None else {each.id: each for each in deliveries.rows(reader.queue_id, ids)}
        reasons = {id_: _ignored_reason(found.get(id_), sender_id, before_ns) for id_ in ids}
        if ended := [each.seq for id_, each in found.items() if reasons[id_] is not None]:
            self._commit_effects.closed.append(ClosedDeliveries(row.mesh, confirmation.reader, ended))
        ignored = tuple([Ignored(id_, reason) for id_, reason in reasons.items() if reason is not None])
        closing = [found[id_] for id_ in ids if reasons[id_] is None]
        if reader is not None and closing:
            opened = len([each for each in closing if each.state in OPEN])
            deliveries.confirm(reader.queue_id, [each.seq for each in closing], opened, len(closing) - opened)
        return _Effect(sender_id, closing, ignored)

    def _write(self, row: EventRow, seq: int, effect: _Effect) -> ConfirmationAccepted:
        event_id, reader, sender, now_ns = row.event.id, row.event.pubkey, _confirmation(row).sender, self._unit.now_ns
        ids, seqs = [each.id for each in effect.rows], tuple([each.seq for each in effect.rows])
        items = [_Item(each.id, each.was_stored, now_ns) for each in effect.rows]
        body = {"ids": ids, "was_stored": [each.was_stored for each in effect.rows], "confirmation": event_id}
        command = command_text("CONFIRMED", items, msgspec.Raw(row.raw))
        self._commit_effects.confirmed.append(Confirmed(row.mesh, reader, sender, seqs, seq, command))
        text, reserve = _encode(items).decode(), self._settings.confirmation_reserve
        self._unit.deliveries.keep_confirmation(effect.sender, seq, len(ids), text, reserve)
        self._unit.append("delivery.confirmed", mesh=row.mesh, actor=reader, ref=reader, body=body)
        return ConfirmationAccepted(event_id, seq, False, tuple(ids), effect.ignored)


def _confirmation(row: EventRow) -> Confirmation:
    assert isinstance(row.payload, Confirmation)
    return row.payload


def _ignored_reason(row: DeliveryRow | None, sender_id: int, before_ns: int) -> str | None:
    """Return why an id has no effect, or None if it has one."""
    if row is None:
        return "unknown"
    if row.sender != sender_id:
        return "foreign"
    if row.state in OPEN:
        return "expired" if row.opened_at_ns < before_ns else None
    if row.state in PARKED:
        return None
    return "duplicate" if row.state == "confirmed" else row.state


def _shown(ignored: Sequence[Ignored]) -> list[dict[str, str]]:
    return [{"id": each.id, "reason": each.reason} for each in ignored]
