"""Accept messages inside the transaction: look up duplicates, find recipients with room, write, answer.

One object serves the messages of one group. The route of a sender's messages to a destination is worked out once per
group. It changes only rows, so the writer may run a group again. A message is a duplicate if a dedupe record shows that
its sender and agent used its client_message_id before, or, once that record may have been swept, if its event id is
known. `MessageHandlers` gives the accept path the handlers of messages, confirmations, receipts and deletions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from posthouse.model.deletion import Deletion
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.message import Confirmation
from posthouse.model.message_api import NotQueued
from posthouse.model.receipt import Receipt
from posthouse.relay.accept.commit import Decision, GroupHandler, Repeat
from posthouse.relay.accept.deletions import Deletions
from posthouse.relay.accept.quotas import Quotas
from posthouse.relay.accept.submission import CommitEffects, QueuedMessage
from posthouse.relay.messages.audience import Audience, GroupQueue, GroupQueues, MeshAudience
from posthouse.relay.messages.confirmations import Confirmations, Receipts
from posthouse.relay.messages.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import (
    QUEUE_FULL,
    Accepted,
    Answer,
    Declined,
    MessageAccepted,
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


class _Recipients(msgspec.Struct, eq=False, gc=False):
    """The queues that get a message, and those that do not; shared by the messages of a route."""

    sender: GroupQueue
    queued: Sequence[GroupQueue]
    #: queues of readers that block the sender; the sender must not notice
    blocked: Sequence[GroupQueue]
    #: readers without room
    not_queued: tuple[NotQueued, ...]
    #: the nodes that `queued` belongs to
    readers: tuple[str, ...]


class _Route(msgspec.Struct, frozen=True, gc=False):
    """Where the messages of a sender to one destination go."""

    sender: GroupQueue
    readers: Sequence[GroupQueue]
    blockers: Collection[str]
    #: valid while all readers have room
    recipients: _Recipients


class MessageHandlers:
    """Makes the handlers of each group; keeps the audiences of meshes from group to group."""

    def __init__(
        self,
        settings: DeliverySettings = DEFAULT_SETTINGS,
        relay: str = "",
        successor: Callable[[str], str] = lambda node: node,
    ) -> None:
        self.settings = settings
        #: returns the current key of a node
        self._successor = successor
        #: node id of the relay, whose deletions may name events of any author
        self._relay = relay
        self._audience = Audience()

    def open_group(
        self, unit: Unit, rows: Sequence[EventRow], effects: CommitEffects, quotas: Quotas | None
    ) -> dict[type, GroupHandler]:
        """Return the handlers of a group by the type of payload they handle."""
        handlers: dict[type, GroupHandler] = {}
        payloads = {type(row.payload) for row in rows}
        if Addressed in payloads:
            messages = [row.payload for row in rows if isinstance(row.payload, Addressed)]
            handlers[Addressed] = Messages(unit, self.settings, self._audience, messages, effects, quotas)
        if Confirmation in payloads:
            handlers[Confirmation] = Confirmations(unit, self.settings, effects, self._successor)
        if Receipt in payloads:
            handlers[Receipt] = Receipts(unit, self.settings, effects, self._successor)
        if Deletion in payloads:
            # last, because it has to find the rows that the others wrote
            handlers[Deletion] = Deletions(unit, self._relay, effects, quotas)
        return handlers


class Messages:
    """The messages of one group."""

    def __init__(
        self,
        unit: Unit,
        settings: DeliverySettings,
        audience: Audience,
        messages: Sequence[Addressed],
        effects: CommitEffects,
        quotas: Quotas | None,
    ) -> None:
        self._unit = unit
        self._quotas = quotas
        self._settings = settings
        self._audience = audience
        self._effects = effects
        routes = dict.fromkeys([each.route for each in messages])
        names = [(mesh, node) for mesh, *nodes, _ref in routes for node in nodes if node is not None]
        self._queues = GroupQueues(unit, settings, effects, names)
        self._records, swept_through_ns = self._find_records(messages)
        #: a later message is a duplicate only if there is a record of it
        self.check_ids_through_ns = swept_through_ns + _CLOCKS_DIFFER_NS
        #: nothing else writes while a group is decided, so each mesh is read once
        self._audiences: dict[str, MeshAudience | None] = {}
        self._routes: dict[DeliveryRoute, _Route] = {}
        #: event id -> recipients
        self._recipients: dict[str, _Recipients] = {}
        #: dedupe key -> the message of this group that has it
        self._fresh: dict[DedupeKey, EventRow] = {}

    def decide(self, row: EventRow, known_seq: int | None, refusal: PosthouseError | None) -> Decision:
        """Return the first answer of a duplicate, a refusal, or the row with its journal record complete.

        A message that is to be written takes room in the queues of its readers.
        """
        addressed = _addressed(row)
        if (duplicate := self._duplicate(row, addressed)) is not None:
            return duplicate
        if known_seq is not None:
            return Accepted(row.event.id, known_seq, True)
        if refusal is not None:
            return refusal
        recipients = self._find_recipients(row, addressed)
        if isinstance(recipients, PosthouseError):
            return recipients
        if self._quotas is not None and (full := self._quotas.take(row)) is not None:
            return full
        for queue in recipients.queued:
            queue.added += 1
        self._recipients[row.event.id] = recipients
        self._fresh[addressed.key] = row
        return msgspec.structs.replace(row, record_body=_record_body(addressed, recipients))

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> list[Accepted]:
        """Write dedupe records, deliveries, counters and mentions; return the answers in order."""
        records: list[NewDedupeRecord] = []
        queued: list[QueuedDelivery] = []
        blocked: list[NewDelivery] = []
        mentions: list[tuple[str, int]] = []
        answers: list[Accepted] = []
        now_ns, retention_ns = self._unit.now_ns, self._settings.record_retention_ns
        expires_at_ns = None if retention_ns is None else now_ns + retention_ns
        chosen = dict.fromkeys(self._recipients.values())
        self._queues.write([queue for each in chosen for queue in (each.sender, *each.queued, *each.blocked)])
        for row, seq in accepted:
            event, addressed = row.event, row.payload
            assert isinstance(addressed, Addressed)
            message, recipients, key = addressed.message, self._recipients[event.id], bytes.fromhex(event.id)
            sender, topic = recipients.sender.queue_id, message.destination_ref if message.recipient is None else None
            agent, to_agent, client_message_id = message.from_agent, message.to_agent, message.client_message_id
            digest = addressed.fingerprint
            records.append((seq, sender, agent, client_message_id, digest, topic, to_agent, now_ns, expires_at_ns))
            for queue in recipients.queued:
                queued.append((seq, queue.queue_id, key, sender, seq, now_ns))
            for queue in recipients.blocked:
                blocked.append((seq, queue.queue_id, "event", key, sender, seq, "blocked", now_ns, now_ns))
            if message.mentions:
                mentions += [(node, seq) for node in message.mentions]
            if recipients.not_queued and topic is not None:
                self._note_gaps(row, seq, topic, recipients.not_queued)
            if recipients.readers:
                self._effects.queued.append(QueuedMessage(seq, row.mesh, event.id, row.raw, recipients.readers))
            answers.append(MessageAccepted(event.id, seq, False, client_message_id, recipients.not_queued))
        self._unit.deliveries.open(records, queued, blocked, mentions)
        return answers

    def _note_gaps(self, row: EventRow, seq: int, topic: str, not_queued: Sequence[NotQueued]) -> None:
        """Record a gap for readers without room, so that they find the message in the topic's history later."""
        names = [(row.mesh, each.recipient) for each in not_queued]
        self._unit.deliveries.add_gaps([(self._queues.by_name[name].queue_id, topic, seq, seq, 1) for name in names])
        self._effects.gaps.update(names)

    def _find_records(self, messages: Sequence[Addressed]) -> tuple[dict[DedupeKey, KnownMessage], int]:
        """Return the dedupe records of messages, and when the youngest message whose record is gone was first seen.

        A node without a queue has never sent anything, so it has no records.
        """
        queues = self._queues.by_name
        keys = [key for each in messages if (key := (queues[each.key[:2]].queue_id, *each.key[2:]))[0]]
        if not keys:
            return {}, 0
        known, swept_through_ns = self._unit.deliveries.records(keys)
        if not known:
            return {}, swept_through_ns
        names = {queues[each.key[:2]].queue_id: each.key[:2] for each in messages}
        records = {(*names[queue_id], agent, id_): each for (queue_id, agent, id_), each in known.items()}
        return records, swept_through_ns

    def _duplicate(self, row: EventRow, addressed: Addressed) -> Answer | Repeat | None:
        """Return the answer to a client_message_id that its sender used before, or None.

        The recorded event itself is a duplicate whatever its fingerprint: rules may have changed since it was accepted.
        """
        key, event_id = addressed.key, row.event.id
        if (record := self._records.get(key)) is not None:
            if record.fingerprint != addressed.fingerprint and record.id != event_id:
                return Declined(event_id, reused(addressed))
            return known_answer(record, key[3])
        if (original := self._fresh.get(key)) is not None:
            if _addressed(original).fingerprint != addressed.fingerprint:
                return Declined(event_id, reused(addressed))
            return Repeat(original.event.id)
        return None

    def _find_recipients(self, row: EventRow, addressed: Addressed) -> _Recipients | PosthouseError:
        """Return a message's recipients, or why it cannot be queued; a topic message goes to readers with room."""
        route = self._routes.get(addressed.route)
        if route is None:
            found = self._find_route(addressed.route)
            if isinstance(found, PosthouseError):
                return found
            route = self._routes[addressed.route] = found
        full = [queue for queue in route.readers if queue.rows + queue.added >= self._settings.queue_max]
        full = [queue for queue in full if not self._queues.has_room(queue)]
        if not full:
            return route.recipients
        if (recipient := addressed.message.recipient) is not None:
            return error(QUEUE_FULL, id=row.event.id, recipient=recipient)
        return _choose_recipients(route.sender, route.readers, route.blockers, full)

    def _find_route(self, route: DeliveryRoute) -> _Route | PosthouseError:
        mesh, sender, recipient, ref = route
        audience = self._audience_of(mesh)
        if audience is None:
            return error("mesh_unknown", mesh=mesh)
        nodes = audience.find_readers(sender, recipient, ref)
        if isinstance(nodes, PosthouseError):
            return nodes
        queues = self._queues.by_name
        if nodes != (recipient,):
            self._queues.load([(mesh, node) for node in nodes])
        author, readers = queues[mesh, sender], [queues[mesh, node] for node in nodes]
        blockers = audience.blockers.get(sender, ())
        return _Route(author, readers, blockers, _choose_recipients(author, readers, blockers, ()))

    def _audience_of(self, mesh: str) -> MeshAudience | None:
        if mesh not in self._audiences:
            self._audiences[mesh] = self._audience.of(self._unit.deliveries, mesh)
        return self._audiences[mesh]


def _choose_recipients(
    sender: GroupQueue, readers: Sequence[GroupQueue], blockers: Collection[str], full: Sequence[GroupQueue]
) -> _Recipients:
    roomy = [queue for queue in readers if queue not in full] if full else readers
    queued = [queue for queue in roomy if queue.node not in blockers] if blockers else roomy
    blocked = [queue for queue in roomy if queue.node in blockers] if len(queued) < len(roomy) else []
    not_queued = tuple([NotQueued(queue.node, QUEUE_FULL) for queue in full])
    return _Recipients(sender, queued, blocked, not_queued, tuple([queue.node for queue in queued]))


def _record_body(addressed: Addressed, recipients: _Recipients) -> str:
    """Return the body of the journal record, which names the recipients."""
    body = msgspec.structs.replace(
        addressed.record,
        recipients=recipients.readers,
        blocked=tuple([queue.node for queue in recipients.blocked]),
        not_queued=recipients.not_queued,
        redirected=_is_redirected(addressed.message.recipient, recipients),
    )
    return _encode(body).decode()


def _is_redirected(recipient: str | None, recipients: _Recipients) -> bool:
    """Return True if a direct message goes to the successor of the key that it names."""
    return recipient is not None and recipient not in [each.node for each in (*recipients.queued, *recipients.blocked)]


def _addressed(row: EventRow) -> Addressed:
    assert isinstance(row.payload, Addressed)
    return row.payload
