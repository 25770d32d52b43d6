"""Accept messages inside the transaction: dedupe records, recipients and room, deliveries, answers.

One object serves the messages of one group. The route of a sender to a destination is worked out once per group.
Only rows are left behind, so the writer may run a group again. `Intake` is the accept path's entry to messages and
confirmations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.message import Confirmation
from posthouse.relay.accept.commit import KindHandler
from posthouse.relay.accept.submission import CommitEffects, QueuedMessage
from posthouse.relay.messages.audience import Audience, GroupQueue, GroupQueues, MeshAudience
from posthouse.relay.messages.confirmations import Confirmations
from posthouse.relay.messages.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import (
    QUEUE_FULL,
    Accepted,
    Answer,
    Declined,
    MessageAccepted,
    NotQueued,
    known_answer,
    reused,
)
from posthouse.relay.wire.delivery_rows import (
    Addressed,
    DedupeKey,
    DeliveryRoute,
    KnownMessage,
    NewDedupeRecord,
    NewDelivery,
    QueuedDelivery,
)

_encode = msgspec.json.Encoder().encode
_CLOCKS_DIFFER_NS = DAY_S * SECOND_NS  # far more than a message may be ahead of the relay's clock


class _Plan(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a message."""

    sender: GroupQueue
    queued: Sequence[GroupQueue]
    #: readers that block the sender; it must not notice
    blocked: Sequence[GroupQueue]
    not_queued: tuple[NotQueued, ...]
    #: nodes it is queued for
    readers: tuple[str, ...]
    #: how the body of its record ends
    ending: str


class _Route(msgspec.Struct, frozen=True, gc=False):
    """Where the messages of a sender to one destination go."""

    sender: GroupQueue
    readers: Sequence[GroupQueue]
    blockers: Collection[str]
    #: as long as all have room
    plan: _Plan


class Messages:
    """The messages of one group."""

    def __init__(
        self, unit: Unit, settings: DeliverySettings, audience: Audience, rows: Sequence[EventRow], mail: CommitEffects
    ) -> None:
        self._unit = unit
        self._settings = settings
        self._audience = audience
        self._mail = mail
        self._boxes = GroupQueues(unit, settings, mail)
        self._records, self._swept_through_ns = self._find_records(
            [row.matter for row in rows if isinstance(row.matter, Addressed)]
        )
        #: nothing else runs while a group is judged, so one look is enough
        self._audiences: dict[str, MeshAudience | None] = {}
        self._routes: dict[DeliveryRoute, _Route] = {}
        #: event id -> what becomes of it
        self._plans: dict[str, _Plan] = {}
        #: key -> the message of this group that has it
        self._fresh: dict[DedupeKey, EventRow] = {}

    def is_told_by_id(self, row: EventRow) -> bool:
        """Tell whether a message may have been accepted although it has no record any more."""
        return row.event.created_at_ns <= self._swept_through_ns + _CLOCKS_DIFFER_NS

    def known(self, row: EventRow) -> Answer | str | None:
        """Return the answer to a client_message_id that is known, the id of its message in this group, or None."""
        addressed = _addressed(row)
        key = addressed.key
        record = self._records.get(key) if self._records else None
        if record is not None:
            if record.fingerprint != addressed.fingerprint:
                return Declined(row.event.id, reused(addressed))
            return known_answer(record, key[2])
        fresh = self._fresh.get(key)
        if fresh is None:
            return None
        is_same = _addressed(fresh).fingerprint == addressed.fingerprint
        return fresh.event.id if is_same else Declined(row.event.id, reused(addressed))

    def claim(self, row: EventRow, _limited: PosthouseError | None) -> EventRow | PosthouseError:
        """Take the room of a message's readers and return its row, or why it cannot be queued.

        The record is complete then: it names who the message is queued for.
        """
        event, addressed = row.event, _addressed(row)
        message = addressed.message
        route = self._routes.get(addressed.way)
        if route is None:
            found = self._find_route(addressed.way)
            if isinstance(found, PosthouseError):
                return found
            route = self._routes[addressed.way] = found
        plan = route.plan
        full = [box for box in route.readers if not self._boxes.has_room(box)]
        if full:
            if message.recipient is not None:
                return error(QUEUE_FULL, id=event.id, recipient=message.recipient)
            plan = _plan(route.sender, route.readers, route.blockers, dict.fromkeys(full))
        for box in plan.queued:
            box.added += 1
        self._plans[event.id] = plan
        self._fresh[addressed.key] = row
        return msgspec.structs.replace(row, record_body=row.record_body[:-1] + plan.ending)

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Write records, deliveries, counters and mentions of messages that have their seq now."""
        records: list[NewDedupeRecord] = []
        queued: list[QueuedDelivery] = []
        others: list[NewDelivery] = []
        mentions: list[tuple[str, int]] = []
        now_ns, retention_ns = self._unit.now_ns, self._settings.record_retention_ns
        expires_at_ns = None if retention_ns is None else now_ns + retention_ns
        plans = {id(plan): plan for plan in self._plans.values()}.values()  # messages of one way share theirs
        self._boxes.write([box for plan in plans for box in (plan.sender, *plan.queued, *plan.blocked)])
        for row, seq in accepted:
            event, addressed = row.event, _addressed(row)
            message, plan, id_ = addressed.message, self._plans[event.id], bytes.fromhex(event.id)
            sender, topic = plan.sender.number, message.destination_ref if message.recipient is None else None
            records.append(
                (seq, sender, message.client_message_id, addressed.fingerprint, topic, now_ns, expires_at_ns)
            )
            for box in plan.queued:
                queued.append((seq, box.number, id_, sender, seq, now_ns))
            for box in plan.blocked:
                others.append((seq, box.number, "event", id_, sender, seq, "blocked", now_ns, now_ns))
            if message.mentions:
                mentions += [(node, seq) for node in message.mentions]
            if plan.readers:
                self._mail.openings.append(QueuedMessage(seq, row.mesh, event.id, row.raw, plan.readers))
        self._unit.deliveries.open(records, queued, others, mentions)

    def answer(self, row: EventRow, seq: int, *, is_repeated: bool) -> Accepted:
        """Return the answer of a message of this group."""
        addressed = _addressed(row)
        client_message_id = addressed.message.client_message_id
        if is_repeated:
            known = KnownMessage(seq, row.event.id, addressed.fingerprint, self._unit.now_ns, True)
            return known_answer(known, client_message_id)
        return MessageAccepted(row.event.id, seq, False, client_message_id, self._plans[row.event.id].not_queued)

    def _find_records(self, messages: Sequence[Addressed]) -> tuple[dict[DedupeKey, KnownMessage], int]:
        """Return the records under the keys of messages, and when the youngest was seen whose record is gone.

        Who has no mailbox never sent anything, and has no records.
        """
        ways = dict.fromkeys(each.way for each in messages)
        self._boxes.load([(mesh, node) for mesh, *nodes, _ref in ways for node in nodes if node is not None])
        numbers = {way: self._boxes.find(way[0], way[1]).number for way in ways}
        keys = [(number, each.key[2]) for each in messages if (number := numbers[each.way])]
        if not keys:
            return {}, 0
        known, swept_through_ns = self._unit.deliveries.records(keys)
        senders = {number: way[:2] for way, number in numbers.items()} if known else {}
        return {(*senders[number], id_): record for (number, id_), record in known.items()}, swept_through_ns

    def _find_route(self, way: DeliveryRoute) -> _Route | PosthouseError:
        mesh, sender, recipient, ref = way
        audience = self._audience_of(mesh)
        if audience is None:
            return error("mesh_unknown", mesh=mesh)
        if recipient is not None:
            if not audience.has_member(recipient):
                return error("member_unknown", node=recipient, mesh=mesh)
            readers = [self._boxes.find(mesh, recipient)]
        else:
            if not audience.has_topic(ref):
                return error("topic_unknown", topic=ref, mesh=mesh)
            readers = self._boxes.load([(mesh, node) for node in audience.readers(ref) if node != sender])
        author, blockers = self._boxes.find(mesh, sender), audience.blockers(sender)
        return _Route(author, readers, blockers, _plan(author, readers, blockers, ()))

    def _audience_of(self, mesh: str) -> MeshAudience | None:
        if mesh not in self._audiences:
            self._audiences[mesh] = self._audience.of(self._unit.deliveries, mesh)
        return self._audiences[mesh]


def _plan(
    sender: GroupQueue, readers: Sequence[GroupQueue], blockers: Collection[str], full: Collection[GroupQueue]
) -> _Plan:
    roomy = [box for box in readers if box not in full] if full else readers
    queued = [box for box in roomy if box.node not in blockers] if blockers else roomy
    nodes = tuple([box.node for box in queued])
    ending = f',"recipients":{_encode(nodes).decode()}'
    blocked: list[GroupQueue] = []
    not_queued: tuple[NotQueued, ...] = ()
    if len(queued) < len(roomy):
        blocked = [box for box in roomy if box.node in blockers]
        ending += f',"blocked":{_encode([box.node for box in blocked]).decode()}'
    if full:
        not_queued = tuple(NotQueued(box.node, QUEUE_FULL) for box in full)
        ending += f',"not_queued":{_encode(not_queued).decode()}'
    return _Plan(sender, queued, blocked, not_queued, nodes, ending + "}")


def _addressed(row: EventRow) -> Addressed:
    assert isinstance(row.matter, Addressed)
    return row.matter


class Intake:
    """What lasts from group to group."""

    def __init__(self, settings: DeliverySettings = DEFAULT_SETTINGS) -> None:
        self.settings = settings
        self._audience = Audience()

    def begin(self, unit: Unit, rows: Sequence[EventRow]) -> Batch:
        """Begin the messages and confirmations among these rows."""
        return Batch(unit, self.settings, self._audience, [row for row in rows if row.matter is not None])


class Batch:
    """The messages and confirmations of one group."""

    def __init__(self, unit: Unit, settings: DeliverySettings, audience: Audience, rows: Sequence[EventRow]) -> None:
        self.mail = CommitEffects()
        #: by what the tags say
        self.handlers: dict[type, KindHandler] = {
            Addressed: Messages(unit, settings, audience, rows, self.mail),
            Confirmation: Confirmations(unit, settings, self.mail),
        }

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Write everything that belongs to rows that have their seq now."""
        for matter, handler in self.handlers.items():
            rows = [each for each in accepted if type(each[0].matter) is matter]
            if rows:
                handler.write(rows)
