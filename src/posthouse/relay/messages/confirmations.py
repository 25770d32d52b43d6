"""Accept confirmations inside the transaction: each id counts for itself, and the answer says what became of it.

A confirmation closes deliveries of its author that are open or parked; never one that has expired, was purged or
blocked, or was confirmed before. A confirmation without any effect is not stored. The sender's copy is kept until
it was provably read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.message import Confirmation
from posthouse.relay.accept.submission import CommitEffects, Confirmed
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import ConfirmationAccepted, Ignored
from posthouse.relay.wire.delivery_rows import OPEN, PARKED, ClosedDeliveries, DeliveryRow

_encode = msgspec.json.Encoder().encode


class _Effect(NamedTuple):
    sender: int
    rows: list[DeliveryRow]
    ignored: tuple[Ignored, ...]


class Confirmations:
    """The confirmations of one group."""

    def __init__(self, unit: Unit, settings: DeliverySettings, mail: CommitEffects) -> None:
        self._unit = unit
        self._settings = settings
        self._mail = mail
        self._effects: dict[str, _Effect] = {}

    def is_told_by_id(self, _row: EventRow) -> bool:
        """Tell that a confirmation is known by its id alone."""
        return True

    def known(self, _row: EventRow) -> None:
        """Return nothing: see is_told_by_id."""

    def claim(self, row: EventRow, limited: PosthouseError | None) -> EventRow | PosthouseError:
        """Close the rows a confirmation names and return its row; without any effect return why it is refused.

        The record is complete then: it names the ids that were closed. `limited` is the refusal for want of rate,
        which counts only for one without effect.
        """
        confirmation = _confirmation(row)
        boxes = self._unit.deliveries.boxes(row.mesh, (confirmation.reader, confirmation.sender))
        reader, sender = boxes.get(confirmation.reader), boxes.get(confirmation.sender)
        ids = tuple(dict.fromkeys(confirmation.ids))
        found = {} if reader is None else {each.id: each for each in self._unit.deliveries.rows(reader.mailbox, ids)}
        number = 0 if sender is None else sender.mailbox
        before_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        reasons = {id_: _reason(found.get(id_), number, before_ns) for id_ in ids}
        if ignored_seqs := [each.seq for id_, each in found.items() if reasons[id_] is not None]:
            self._mail.closed.append(
                ClosedDeliveries(row.mesh, confirmation.reader, ignored_seqs)
            )  # nothing waits for them
        closing = [found[id_] for id_ in ids if reasons[id_] is None]
        ignored = tuple(Ignored(id_, reason) for id_, reason in reasons.items() if reason is not None)
        if reader is None or not closing:
            return limited or error("confirmation_without_effect", id=row.event.id, ignored=_shown(ignored))
        opened = sum(each.state in OPEN for each in closing)
        seqs = [each.seq for each in closing]
        self._unit.deliveries.confirm(reader.mailbox, seqs, opened, len(closing) - opened)
        self._effects[row.event.id] = _Effect(number, closing, ignored)
        closed = _encode([each.id for each in closing]).decode()
        return msgspec.structs.replace(row, record_body=f'{row.record_body[:-1]},"ids":{closed}}}')

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Record what confirmations that have their seq now closed, and keep them for their senders."""
        for row, seq in accepted:
            self._write(row, seq)

    def answer(self, row: EventRow, seq: int, *, is_repeated: bool) -> ConfirmationAccepted:
        """Return the answer of a confirmation of this group."""
        effect = self._effects[row.event.id]
        ids = tuple(each.id for each in effect.rows)
        return ConfirmationAccepted(row.event.id, seq, is_repeated, ids, effect.ignored)

    def _write(self, row: EventRow, seq: int) -> None:
        effect = self._effects[row.event.id]
        at_ns = self._unit.now_ns
        items = _encode([{"id": each.id, "was_stored": each.was_stored, "at_ns": at_ns} for each in effect.rows])
        self._unit.deliveries.tell_sender(
            effect.sender, seq, len(effect.rows), items.decode(), self._settings.confirmation_reserve
        )
        body = {
            "ids": [each.id for each in effect.rows],
            "was_stored": [each.was_stored for each in effect.rows],
            "confirmation": row.event.id,
        }
        self._unit.append("delivery.confirmed", mesh=row.mesh, actor=row.event.pubkey, ref=row.event.pubkey, body=body)
        seqs = tuple(each.seq for each in effect.rows)
        text = b'["CONFIRMED",%b,%b]' % (items, row.raw)
        self._mail.confirmed.append(Confirmed(row.mesh, row.event.pubkey, _confirmation(row).sender, seqs, seq, text))


def _confirmation(row: EventRow) -> Confirmation:
    assert isinstance(row.matter, Confirmation)
    return row.matter


def _reason(row: DeliveryRow | None, sender: int, before_ns: int) -> str | None:
    """Return why an id has no effect, or None when it has one."""
    if row is None:
        return "unknown"
    if row.sender != sender:
        return "foreign"
    if row.state in OPEN:
        return "expired" if row.opened_at_ns < before_ns else None
    if row.state in PARKED:
        return None
    return "duplicate" if row.state == "confirmed" else row.state


def _shown(ignored: Sequence[Ignored]) -> list[dict[str, str]]:
    return [{"id": each.id, "reason": each.reason} for each in ignored]
