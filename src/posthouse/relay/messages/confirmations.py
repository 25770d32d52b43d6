"""Accept confirmations and receipts inside the transaction: each id is decided separately, and the answer lists each.

A confirmation closes deliveries of its author that are open or parked; never one that has expired, was purged or
blocked, or was confirmed before. A receipt says what became of a direct message at its reader's host; only the first
receipt of a delivery counts, and it closes nothing. An event without any effect is not stored. A copy for the sender is
kept until the sender has provably read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import INT64_MAX
from posthouse.model.message import Confirmation
from posthouse.model.message_api import ConfirmedItem, Ignored, ReceiptEntry, State
from posthouse.model.receipt import Receipt, ReceiptItem
from posthouse.relay.accept.commit import Decision, Repeat
from posthouse.relay.accept.submission import CommitEffects, Confirmed
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.event_rows import ConfirmationRecord, EventRow
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import Accepted, ConfirmationAccepted, ReceiptAccepted
from posthouse.relay.wire.delivery_rows import OPEN, PARKED, ClosedDeliveries, DeliveryRow, ReceiptRow
from posthouse.relay.wire.frames import command_text

_encode = msgspec.json.Encoder().encode


T = TypeVar("T")


class _Effect(NamedTuple, Generic[T]):
    #: the sender's current key, and its queue id
    sender: str
    sender_id: int
    #: the messages of that sender for which the event has an effect
    items: list[T]
    ignored: tuple[Ignored, ...]


class _ReadersEvents(ABC, Generic[T]):
    """Confirmations or receipts of one group; an event with an effect is not charged."""

    #: duplicates are detected by their event id only
    check_ids_through_ns = INT64_MAX
    #: the code of an event without any effect
    without_effect: ClassVar[str]

    def __init__(
        self, unit: Unit, settings: DeliverySettings, effects: CommitEffects, successor: Callable[[str], str]
    ) -> None:
        self._unit = unit
        #: a sender may have rotated its key since it sent the message
        self._successor = successor
        self._settings = settings
        self._commit_effects = effects
        #: event id -> what the event does
        self._effects: dict[str, _Effect[T]] = {}

    def decide(self, row: EventRow, known_seq: int | None, refusal: PosthouseError | None) -> Decision:
        """Apply an event and return its complete row; a rate refusal only applies if the event has no effect."""
        if known_seq is not None:
            return Accepted(row.event.id, known_seq, True)
        if row.event.id in self._effects:
            return Repeat(row.event.id)
        if refusal is not None and refusal.code != "rate_limited":
            return refusal
        effect = self._apply(row)
        if not effect.items:
            return refusal or error(self.without_effect, id=row.event.id, ignored=_shown(effect.ignored))
        self._effects[row.event.id] = effect
        return self._complete(row, effect)

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> list[Accepted]:
        """Record the effects and keep a copy for each sender; return the answers in order."""
        return [self._write(row, seq, self._effects[row.event.id]) for row, seq in accepted]

    @abstractmethod
    def _apply(self, row: EventRow) -> _Effect[T]:
        """Change the deliveries that an event names."""

    @abstractmethod
    def _write(self, row: EventRow, seq: int, effect: _Effect[T]) -> Accepted:
        """Record the effect of a stored event."""

    def _complete(self, row: EventRow, effect: _Effect[T]) -> EventRow:
        return row

    def _keep_copy(self, sender: int, seq: int, items: Sequence[msgspec.Struct]) -> None:
        text, reserve = _encode(items).decode(), self._settings.confirmation_reserve
        self._unit.deliveries.keep_confirmation(sender, seq, len(items), text, reserve)


class Confirmations(_ReadersEvents[DeliveryRow]):
    """The confirmations of one group: they close deliveries."""

    without_effect = "confirmation_without_effect"

    def _complete(self, row: EventRow, effect: _Effect[DeliveryRow]) -> EventRow:
        record = ConfirmationRecord(row.size, _confirmation(row).sender, tuple([each.id for each in effect.items]))
        return msgspec.structs.replace(row, record_body=_encode(record).decode())

    def _apply(self, row: EventRow) -> _Effect[DeliveryRow]:
        confirmation = _confirmation(row)
        deliveries, before_ns = self._unit.deliveries, self._unit.now_ns - self._settings.queue_ttl_ns
        author = self._successor(confirmation.sender)
        queues = deliveries.queues(row.mesh, (confirmation.reader, author))
        reader, sender = queues.get(confirmation.reader), queues.get(author)
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
        return _Effect(author, sender_id, closing, ignored)

    def _write(self, row: EventRow, seq: int, effect: _Effect[DeliveryRow]) -> ConfirmationAccepted:
        event_id, reader, now_ns = row.event.id, row.event.pubkey, self._unit.now_ns
        ids, seqs = [each.id for each in effect.items], tuple([each.seq for each in effect.items])
        items = [ConfirmedItem(each.id, each.was_stored, now_ns) for each in effect.items]
        body = {"ids": ids, "was_stored": [each.was_stored for each in effect.items], "confirmation": event_id}
        self._keep_copy(effect.sender_id, seq, items)
        self._unit.append("delivery.confirmed", mesh=row.mesh, actor=reader, ref=reader, body=body)
        command = command_text("CONFIRMED", items, msgspec.Raw(row.raw))
        self._commit_effects.confirmed.append(Confirmed(row.mesh, reader, effect.sender, seqs, seq, command))
        return ConfirmationAccepted(event_id, seq, False, tuple(ids), effect.ignored)


class Receipts(_ReadersEvents[ReceiptItem]):
    """The receipts of one group: the first one of a delivery is kept."""

    without_effect = "receipt_without_effect"

    def _apply(self, row: EventRow) -> _Effect[ReceiptItem]:
        deliveries, receipt = self._unit.deliveries, _receipt(row)
        author = self._successor(receipt.sender)
        queues = deliveries.queues(row.mesh, (receipt.reader, author))
        reader, sender = queues.get(receipt.reader), queues.get(author)
        sender_id = 0 if sender is None else sender.queue_id
        ids = [item.id for item in receipt.items]
        found = {} if reader is None else {each.id: each for each in deliveries.receipt_rows(reader.queue_id, ids)}
        reasons = {id_: _unreceipted_reason(found.get(id_), sender_id) for id_ in ids}
        kept = [item for item in receipt.items if reasons[item.id] is None]
        if reader is not None and kept:
            queue_id = reader.queue_id
            deliveries.add_receipts(
                [(found[each.id].seq, queue_id, each.state.value, each.at_ms, each.reason) for each in kept]
            )
        ignored = tuple([Ignored(id_, reason) for id_, reason in reasons.items() if reason is not None])
        return _Effect(author, sender_id, kept, ignored)

    def _write(self, row: EventRow, seq: int, effect: _Effect[ReceiptItem]) -> ReceiptAccepted:
        event_id, receipt = row.event.id, _receipt(row)
        items = [ReceiptEntry(each.id, each.state, each.at_ms, each.reason) for each in effect.items]
        ids = tuple([each.id for each in items])
        self._keep_copy(effect.sender_id, seq, items)
        body = {"ids": ids, "states": [each.state for each in items], "at_ms": [each.at_ms for each in items]}
        body |= {"receipt": event_id} | ({"agent": receipt.agent} if receipt.agent else {})
        self._unit.append("delivery.receipt", mesh=row.mesh, actor=receipt.reader, ref=receipt.reader, body=body)
        command = command_text("RECEIPT", items, msgspec.Raw(row.raw))
        self._commit_effects.confirmed.append(Confirmed(row.mesh, receipt.reader, effect.sender, (), seq, command))
        return ReceiptAccepted(event_id, seq, False, ids, effect.ignored)


def _receipt(row: EventRow) -> Receipt:
    assert isinstance(row.payload, Receipt)
    return row.payload


def _unreceipted_reason(row: ReceiptRow | None, sender_id: int) -> str | None:
    """Return why a receipt has no effect on an id, or None if it has one."""
    if row is None:
        return "unknown"
    if row.sender != sender_id:
        return "foreign"
    if row.is_topic:
        return "topic"
    if row.has_receipt:
        return "duplicate"
    return row.state if row.state in _SILENT else None


#: states that the sender must not, or need not, learn about
_SILENT = frozenset({State.EXPIRED, State.PURGED, State.BLOCKED})


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
