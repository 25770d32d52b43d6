"""Consistency rules of the message and envelope tables; each yields findings as sentences.

Every message has its dedupe record, and every dedupe record has its message or is marked as pruned. Every delivery
has its record. Counters equal the number of rows. States and mentions equal a replay of the journal, with one outcome
per opening. Every Pinch confirm in the journal carries the signature of its reader. Replay is pure: records in,
states out, from the beginning or from the last journal.snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec

from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.journal.verify import Rule
from posthouse.keys import verify
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event, decode_event
from posthouse.model.limits import DAY_S, RECORD_RETENTION_MIN_DAYS, SECOND_NS
from posthouse.model.message import Message, message_fingerprint, read_message, without_agents
from posthouse.model.message_api import State
from posthouse.model.node import node_from_key
from posthouse.model.pinch import confirm_bytes, delivery_id, parse_address
from posthouse.relay.accept.mesh_registry import Meshes
from posthouse.relay.store.sqlite.deliveries import CHECK_SQL as SQL
from posthouse.relay.store.sqlite.meshes_and_locks import read_mesh_rows
from posthouse.relay.store.sqlite.pinch import PINCH_SQL
from posthouse.relay.wire.delivery_rows import OPEN, PARKED

#: mesh, recipient, message id
Key = tuple[str, str, str]
_UNFINISHED = OPEN | PARKED


class DeliveryReplay:
    """States of deliveries after the journal records that were applied."""

    def __init__(self) -> None:
        self.states: dict[Key, str] = {}
        #: message id -> mentioned nodes, of the messages whose record was applied
        self.mentions: dict[str, list[str]] = {}
        #: seq of the snapshot that the replay starts from
        self.base_seq = 0
        #: findings about impossible records
        self.faults: list[str] = []

    def apply(self, record: Record) -> None:
        """Apply one record; types that do not concern deliveries are skipped."""
        step = _STEPS.get(record.type)
        if step is not None:
            step(self, record, record.decoded_body())

    def move(self, record: Record, node: str, ids: Iterable[str], allowed: Collection[str], state: str) -> None:
        """Change the state of deliveries of one reader; a former state that is not allowed is a fault."""
        for id_ in ids:
            key = (str(record.mesh), node, id_)
            before = self.states.get(key)
            if before is None or before not in allowed:
                self.faults.append(f"deliveries: record {record.seq} ({record.type}) finds {id_} for {node} {before}")
            self.states[key] = state


def _accepted(replay: DeliveryReplay, record: Record, body: dict[str, Any]) -> None:
    id_, mesh = str(record.ref), str(record.mesh)
    for node in body["recipients"]:
        replay.states[mesh, node, id_] = State.QUEUED
    for node in body.get("blocked", ()):
        replay.states[mesh, node, id_] = State.BLOCKED
    replay.mentions[id_] = list(body.get("mentions", ()))


def _pinch_accepted(replay: DeliveryReplay, record: Record, body: dict[str, Any]) -> None:
    state = State.BLOCKED if body.get("blocked") else State.QUEUED
    replay.states[str(record.mesh), body["recipient"], body["id"]] = state


def _sent(replay: DeliveryReplay, record: Record, body: dict[str, Any]) -> None:
    for id_ in body["ids"]:
        key = (str(record.mesh), str(record.actor), id_)
        if replay.states.get(key) == State.QUEUED:  # it may have ended before the record was written
            replay.states[key] = State.SENT


def _ends_many(state: str, allowed: frozenset[State]) -> Callable[[DeliveryReplay, Record, dict[str, Any]], None]:
    def step(replay: DeliveryReplay, record: Record, body: dict[str, Any]) -> None:
        replay.move(record, str(record.ref), body["ids"], allowed, state)

    return step


def _parks(state: str) -> Callable[[DeliveryReplay, Record, dict[str, Any]], None]:
    def step(replay: DeliveryReplay, record: Record, _body: dict[str, Any]) -> None:
        replay.move(record, str(record.actor), [str(record.ref)], OPEN, state)

    return step


def _requeued(replay: DeliveryReplay, record: Record, body: dict[str, Any]) -> None:
    replay.move(record, body["recipient"], [str(record.ref)], PARKED, State.QUEUED)


def _retired(replay: DeliveryReplay, record: Record, body: dict[str, Any]) -> None:
    """Give all deliveries and mentions of a key to its successor."""
    node, successor = str(record.ref), body.get("successor")
    if successor is None:
        return
    for mesh, reader, id_ in [key for key in replay.states if key[1] == node]:
        replay.states[mesh, successor, id_] = replay.states.pop((mesh, reader, id_))
    for nodes in replay.mentions.values():
        nodes[:] = [successor if each == node else each for each in nodes]


def _snapshot(replay: DeliveryReplay, record: Record, body: dict[str, Any]) -> None:
    replay.base_seq = record.seq
    rows = body["state"].get("deliveries", {}).get("rows", [])
    replay.states = {(row["mesh"], row["recipient"], row["id"]): row["state"] for row in rows}
    replay.mentions.clear()
    replay.faults.clear()  # the snapshot replaces everything before it


_STEPS: dict[str, Callable[[DeliveryReplay, Record, dict[str, Any]], None]] = {
    "message.accepted": _accepted,
    "pinch.accepted": _pinch_accepted,
    "delivery.sent": _sent,
    "delivery.confirmed": _ends_many(State.CONFIRMED, frozenset(_UNFINISHED)),
    "delivery.expired": _ends_many(State.EXPIRED, OPEN),
    "delivery.blocked": _ends_many(State.BLOCKED, OPEN),
    "delivery.purged": _ends_many(State.PURGED, frozenset(_UNFINISHED)),
    "delivery.rejected": _parks(State.REJECTED),
    "delivery.dead": _parks(State.DEAD),
    "delivery.requeued": _requeued,
    "key.retired": _retired,
    "journal.snapshot": _snapshot,
}
TYPES = frozenset(_STEPS)
_LEAST_NS = RECORD_RETENTION_MIN_DAYS * DAY_S * SECOND_NS
_RECORDS_PER_READ = 1_000
_names = msgspec.json.Decoder(list[str]).decode


def check_message_records(db: apsw.Connection) -> Iterator[str]:
    """Compare dedupe records with their messages."""
    for (seq,) in db.execute(SQL.records_without_event):
        yield f"messages: the dedupe record of {seq} lacks its message, or is not marked as pruned"
    for (seq,) in db.execute(SQL.events_without_record, {"least_ns": _LEAST_NS}):
        yield f"messages: the message {seq} has no record"
    successor = Meshes(read_mesh_rows(db)).successor  # the record belongs to the author's current key
    for seq, *record, raw in db.execute(SQL.records_with_content):
        event = decode_event(raw)
        try:
            message = read_message(event)
        except PosthouseError as fault:
            yield f"messages: {seq} cannot be read: {fault}"
            continue
        author = successor(event.pubkey)
        if not any(_is_record_of(each, event, author, record) for each in (message, without_agents(message))):
            yield f"messages: the dedupe record of {seq} differs from its content"


def _is_record_of(message: Message, event: Event, author: str, record: Sequence[Any]) -> bool:
    said = (message.mesh, author, message.from_agent, message.client_message_id)
    digest, destination = message_fingerprint(message, event), (message.destination_kind, message.destination_ref)
    return [*said, digest, *destination] == list(record)


def check_deliveries(db: apsw.Connection) -> Iterator[str]:
    """Compare deliveries and waiting confirmations with their records, and with the counters."""
    for seq, node in db.execute(SQL.deliveries_without_record):
        yield f"deliveries: the delivery of {seq} for {node} lacks its record"
    for mesh, node in db.execute(SQL.wrong_counters):
        yield f"deliveries: the counters of {node} in {mesh} differ from the rows"
    for (seq,) in db.execute(SQL.wrong_confirmations):
        yield f"deliveries: the waiting confirmation {seq} differs from its event"
    for (topic,) in db.execute(SQL.wrong_gaps):
        yield f"deliveries: a gap of {topic} has no reader, or ends before it begins"
    for (seq,) in db.execute(SQL.wrong_receipts):
        yield f"deliveries: a receipt names {seq}, which is not a direct message to its reader"
    for (seq,) in db.execute(SQL.wrong_mentions):
        yield f"messages: a mention names {seq}, which has no record"


def check_replay(db: apsw.Connection) -> Iterator[str]:
    """Compare states and mentions with a replay of the journal."""
    replay, seq = DeliveryReplay(), 0
    while records := read_after(db, seq, _RECORDS_PER_READ, TYPES):
        for record in records:
            replay.apply(record)
        seq = records[-1].seq
    yield from replay.faults
    yield from _compare_states(db, replay)
    yield from _compare_mentions(db, replay)


def _compare_states(db: apsw.Connection, replay: DeliveryReplay) -> Iterator[str]:
    unseen: dict[Key, str] = dict(replay.states)
    for mesh, node, id_, seq, state in db.execute(SQL.states):
        expected = unseen.pop((mesh, node, id_), None)
        if expected is None and seq <= replay.base_seq and state not in OPEN | PARKED:
            continue  # it ended before the snapshot
        if expected != state:
            yield f"deliveries: {id_} for {node} is {state}, but the journal says {expected}"
    kept = {id_ for (id_,) in db.execute(SQL.record_ids)}
    for (_mesh, node, id_), expected in unseen.items():
        if id_ in kept:  # otherwise its record expired, and its deliveries were deleted with it
            yield f"deliveries: {id_} for {node} is missing, but the journal says {expected}"


def _compare_mentions(db: apsw.Connection, replay: DeliveryReplay) -> Iterator[str]:
    found = {id_: sorted(_names(nodes)) for id_, nodes in db.execute(SQL.mentions_above, (replay.base_seq,))}
    kept = {id_ for (id_,) in db.execute(SQL.record_ids)}
    for id_, nodes in replay.mentions.items():
        if id_ in kept and found.get(id_, []) != sorted(nodes):
            yield f"messages: the mentions of {id_} differ from its record in the journal"


DELIVERY_RULES: tuple[Rule, ...] = (check_message_records, check_deliveries, check_replay)


def check_envelopes(db: apsw.Connection) -> Iterator[str]:
    """Compare envelopes with their deliveries and their records."""
    for seq, node in db.execute(PINCH_SQL.deliveries_without_envelope):
        yield f"pinch: the delivery of {seq} for {node} lacks its envelope"
    for (seq,) in db.execute(PINCH_SQL.envelopes_without_delivery):
        yield f"pinch: the envelope {seq} has no delivery"
    horizon: int = db.execute(PINCH_SQL.horizon).get
    for seq, *row in db.execute(PINCH_SQL.envelopes):
        if seq >= horizon and not _is_recorded(db, seq, *row):
            yield f"pinch: the envelope {seq} differs from its record"


def check_confirms(db: apsw.Connection) -> Iterator[str]:
    """Verify the signature of every confirm in the journal."""
    seq = 0
    while records := read_after(db, seq, _RECORDS_PER_READ, {"pinch.confirmed"}):
        for record in records:
            if not is_confirm_signed(record):
                yield f"pinch: the confirm {record.seq} is not signed by {record.actor}"
        seq = records[-1].seq


def is_confirm_signed(record: Record) -> bool:
    """Return True if a pinch.confirmed record carries the signature of the reader that it names."""
    body = record.decoded_body()
    try:
        reader = node_from_key(parse_address(str(record.actor)).key)
        verify(reader, confirm_bytes(str(record.ref).encode(), body["timestamp"]), body["signature"])
    except PosthouseError:
        return False
    return True


def _is_recorded(
    db: apsw.Connection,
    seq: int,
    id_: str,
    sender: str,
    message_id: bytes,
    message_type: int,
    at_ns: int,
    envelope: bytes | None,
    recipient: str,
) -> bool:
    found: list[Record] = read_after(db, seq - 1, 1, None)
    if not found or found[0].seq != seq or found[0].type != "pinch.accepted":
        return False
    record, body = found[0], found[0].decoded_body()
    said: tuple[Any, ...] = (record.actor, str(record.ref).encode(), record.at_ns, body["message_type"])
    if said != (sender, message_id, at_ns, message_type) or (body["id"], body["recipient"]) != (id_, recipient):
        return False
    if message_id and delivery_id(sender, message_id, at_ns).hex() != id_:
        return False
    return envelope is None or len(envelope) == body["size"]


PINCH_RULES: tuple[Rule, ...] = (check_envelopes, check_confirms)
