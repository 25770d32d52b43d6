"""Accepting messages inside the transaction: records, destinations, room, rows.

One object serves the messages of one group. B0 looks the records up, B2 finds out who gets a message and whether
there is room, B3 writes everything with few statements. Queue depths are counted on in memory while the group is
judged, so that its messages see each other; nothing but rows is left behind when it is run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.relay.answers import Accepted, Answer, Declined
from posthouse.relay.deliver.answers import (
    QUEUE_FULL,
    MessageAccepted,
    NotQueued,
    known_answer,
    reused,
)
from posthouse.relay.deliver.audience import Audience, MeshAudience
from posthouse.relay.deliver.boxes import Boxes
from posthouse.relay.deliver.mail import Mail, Opening
from posthouse.relay.deliver.rows import Addressed, KnownMessage, NewDelivery, NewRecord, RecordKey
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.store.interface import EventRow, Unit

_encode = msgspec.json.Encoder().encode


class _Plan(msgspec.Struct, frozen=True, gc=False):
    """What becomes of one message."""

    readers: tuple[str, ...]
    #: readers that block the sender; it must not notice
    blocked: tuple[str, ...]
    not_queued: tuple[NotQueued, ...]


class Messages:
    """The messages of one group."""

    def __init__(
        self, unit: Unit, settings: DeliverySettings, audience: Audience, rows: Sequence[EventRow], mail: Mail
    ) -> None:
        self._unit = unit
        self._settings = settings
        self._audience = audience
        self._mail = mail
        keys = [_key(row, row.matter) for row in rows if isinstance(row.matter, Addressed)]
        self._records = unit.deliveries.records(keys) if keys else {}
        self._boxes = Boxes(unit, settings, mail)
        self._boxes.load([node for row in rows for node in _direct(row)])
        self._plans: dict[str, _Plan] = {}
        #: key -> the message of this group that has it
        self._fresh: dict[RecordKey, tuple[str, bytes]] = {}
        #: nothing else runs while a group is judged, so one look per mesh is enough
        self._audiences: dict[str, MeshAudience | None] = {}
        self._blockers: dict[tuple[str, str], frozenset[str]] = {}

    def known(self, row: EventRow, addressed: Addressed) -> Answer | str | None:
        """Return the answer to a client_message_id that is known, the id of its message in this group, or None."""
        key = _key(row, addressed)
        record = self._records.get(key)
        if record is not None:
            if record.fingerprint != addressed.fingerprint:
                return Declined(row.event.id, reused(addressed))
            return known_answer(record, key[2])
        fresh = self._fresh.get(key)
        if fresh is None:
            return None
        return fresh[0] if fresh[1] == addressed.fingerprint else Declined(row.event.id, reused(addressed))

    def claim(self, row: EventRow, addressed: Addressed) -> PosthouseError | None:
        """Find the readers of a message and take their room, or return why it cannot be queued."""
        message = addressed.message
        audience = self._audience_of(row.mesh)
        if audience is None:
            return error("mesh_unknown", mesh=row.mesh)
        if message.recipient is None:
            if not audience.has_topic(message.destination_ref):
                return error("topic_unknown", topic=message.destination_ref, mesh=row.mesh)
            readers = tuple(node for node in audience.readers(message.destination_ref) if node != row.event.pubkey)
            plan = self._plan_topic(row, readers)
        else:
            if not audience.has_member(message.recipient):
                return error("member_unknown", node=message.recipient, mesh=row.mesh)
            if not self._boxes.has_room(row.mesh, message.recipient):
                return error(QUEUE_FULL, id=row.event.id, recipient=message.recipient)
            plan = self._plan(row, (message.recipient,), ())
        self._plans[row.event.id] = plan
        self._fresh[_key(row, addressed)] = (row.event.id, addressed.fingerprint)
        for node in plan.readers:
            self._boxes.take(row.mesh, node)
        return None

    def complete(self, row: EventRow) -> EventRow:
        """Return the row with its record's body complete: who the message was queued for is known now."""
        plan = self._plans[row.event.id]
        recipients = ",".join([f'"{node}"' for node in plan.readers])
        rest = ""
        if plan.blocked:
            rest += f',"blocked":{_encode(plan.blocked).decode()}'
        if plan.not_queued:
            rest += f',"not_queued":{_encode(plan.not_queued).decode()}'
        body = f'{row.record_body[:-1]},"recipients":[{recipients}]{rest}}}'
        return msgspec.structs.replace(row, record_body=body)

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Write records, deliveries, counters and mentions of messages that have their seq now."""
        records: list[NewRecord] = []
        deliveries: list[NewDelivery] = []
        mentions: list[tuple[str, int]] = []
        now_ns, retention_ns = self._unit.now_ns, self._settings.record_retention_ns
        expires_at_ns = None if retention_ns is None else now_ns + retention_ns
        self._boxes.write([(row.mesh, node) for row, _ in accepted for node in self._involved(row)])
        numbers = self._boxes.numbers
        for row, seq in accepted:
            event, mesh, addressed = row.event, row.mesh, row.matter
            assert isinstance(addressed, Addressed)
            message, plan, key = addressed.message, self._plans[event.id], bytes.fromhex(event.id)
            kind, ref = message.destination_kind, message.destination_ref
            sender, id_ = numbers[mesh, event.pubkey], message.client_message_id
            records.append(
                (seq, mesh, event.pubkey, id_, key, addressed.fingerprint, kind, ref, now_ns, expires_at_ns, 1)
            )
            for node in plan.readers:
                deliveries.append((seq, numbers[mesh, node], "event", key, sender, seq, "queued", now_ns, None))
            for node in plan.blocked:
                deliveries.append((seq, numbers[mesh, node], "event", key, sender, seq, "blocked", now_ns, now_ns))
            if message.mentions:
                mentions += [(node, seq) for node in message.mentions]
            if plan.readers:
                self._mail.openings.append(Opening(seq, mesh, event.id, row.raw, plan.readers))
        self._unit.deliveries.open(records, deliveries, mentions)

    def answer(self, row: EventRow, addressed: Addressed, seq: int, *, is_repeated: bool) -> Accepted:
        """Return the answer of a message of this group."""
        client_message_id = addressed.message.client_message_id
        if is_repeated:
            known = KnownMessage(seq, row.event.id, addressed.fingerprint, self._unit.now_ns, True)
            return known_answer(known, client_message_id)
        return MessageAccepted(row.event.id, seq, False, client_message_id, self._plans[row.event.id].not_queued)

    def _audience_of(self, mesh: str) -> MeshAudience | None:
        if mesh not in self._audiences:
            self._audiences[mesh] = self._audience.of(self._unit.deliveries, mesh)
        return self._audiences[mesh]

    def _plan_topic(self, row: EventRow, readers: tuple[str, ...]) -> _Plan:
        self._boxes.load([(row.mesh, node) for node in readers])
        roomy = tuple(node for node in readers if self._boxes.has_room(row.mesh, node))
        full = () if len(roomy) == len(readers) else tuple(node for node in readers if node not in set(roomy))
        return self._plan(row, roomy, tuple(NotQueued(node, QUEUE_FULL) for node in full))

    def _plan(self, row: EventRow, readers: tuple[str, ...], not_queued: tuple[NotQueued, ...]) -> _Plan:
        key = (row.mesh, row.event.pubkey)
        blockers = self._blockers.get(key)
        if blockers is None:
            blockers = self._blockers[key] = self._unit.deliveries.blockers(*key)
        if not blockers:
            return _Plan(readers, (), not_queued)
        blocked = tuple(node for node in readers if node in blockers)
        return _Plan(tuple(node for node in readers if node not in blockers), blocked, not_queued)

    def _involved(self, row: EventRow) -> tuple[str, ...]:
        plan = self._plans[row.event.id]
        return (row.event.pubkey, *plan.readers, *plan.blocked)


def _key(row: EventRow, addressed: Addressed) -> RecordKey:
    return row.mesh, row.event.pubkey, addressed.message.client_message_id


def _direct(row: EventRow) -> list[tuple[str, str]]:
    """Return the mailboxes a message will surely need: its sender's, and its recipient's."""
    if not isinstance(row.matter, Addressed):
        return []
    recipient = row.matter.message.recipient
    return [(row.mesh, row.event.pubkey)] + ([] if recipient is None else [(row.mesh, recipient)])
