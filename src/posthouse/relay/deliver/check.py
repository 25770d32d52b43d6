"""Rules the tables of messages keep; each yields findings as sentences.

Every message has its record and every record its message, or is marked as pruned; every delivery has its record;
counters count what is there; mentions and states of deliveries are what the journal's records lead to, with one outcome
for each opening.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from posthouse.journal.read import read_after
from posthouse.journal.verify import Rule
from posthouse.model.errors import PosthouseError
from posthouse.model.event import decode_event
from posthouse.model.limits import DAY_S, RECORD_RETENTION_MIN_DAYS, SECOND_NS
from posthouse.model.message import message_fingerprint, read_message
from posthouse.relay.deliver.replay import TYPES, Key, Replay
from posthouse.relay.deliver.rows import OPEN, PARKED
from posthouse.relay.deliver.sqlite.component import CHECK_SQL as SQL

_LEAST_NS = RECORD_RETENTION_MIN_DAYS * DAY_S * SECOND_NS
_RECORDS_PER_READ = 1_000
_names = msgspec.json.Decoder(list[str]).decode


def check_message_records(db: apsw.Connection) -> Iterator[str]:
    """Compare idempotency records with the messages they stand for."""
    for (seq,) in db.execute(SQL.records_without_event):
        yield f"messages: the record of {seq} has not its message, or does not say that it is gone"
    for (seq,) in db.execute(SQL.events_without_record, {"least_ns": _LEAST_NS}):
        yield f"messages: the message {seq} has no record"
    for seq, mesh, sender, client_message_id, digest, kind, ref, raw in db.execute(SQL.records_with_content):
        event = decode_event(raw)
        try:
            message = read_message(event)
        except PosthouseError as fault:
            yield f"messages: {seq} cannot be read: {fault}"
            continue
        said = (
            message.mesh,
            event.pubkey,
            message.client_message_id,
            message.destination_kind,
            message.destination_ref,
        )
        if said != (mesh, sender, client_message_id, kind, ref) or message_fingerprint(message, event) != digest:
            yield f"messages: the record of {seq} is not that of its content"


def check_deliveries(db: apsw.Connection) -> Iterator[str]:
    """Compare deliveries and waiting confirmations with what they belong to, and count them."""
    for seq, node in db.execute(SQL.deliveries_without_record):
        yield f"deliveries: that of {seq} for {node} has not its record"
    for mesh, node in db.execute(SQL.wrong_counters):
        yield f"deliveries: the counters of {node} in {mesh} do not count what is there"
    for (seq,) in db.execute(SQL.wrong_confirmations):
        yield f"deliveries: the confirmation {seq} that waits is not there as it says"
    for (seq,) in db.execute(SQL.wrong_mentions):
        yield f"messages: a mention names {seq}, which has no record"


def check_replay(db: apsw.Connection) -> Iterator[str]:
    """Compare states and mentions with what the journal's records lead to."""
    replay, seq = Replay(), 0
    while records := read_after(db, seq, _RECORDS_PER_READ, TYPES):
        for record in records:
            replay.apply(record)
        seq = records[-1].seq
    yield from replay.faults
    yield from _compare_states(db, replay)
    yield from _compare_mentions(db, replay)


def _compare_states(db: apsw.Connection, replay: Replay) -> Iterator[str]:
    unseen: dict[Key, str] = dict(replay.states)
    for mesh, node, id_, seq, state in db.execute(SQL.states):
        expected = unseen.pop((mesh, node, id_), None)
        if expected is None and seq <= replay.base_seq and state not in OPEN | PARKED:
            continue  # it had ended before the history that is left
        if expected != state:
            yield f"deliveries: {id_} for {node} is {state}, the journal says {expected}"
    kept = {id_ for (id_,) in db.execute(SQL.record_ids)}
    for (_mesh, node, id_), expected in unseen.items():
        if id_ in kept:  # else its record was over, and the deliveries went with it
            yield f"deliveries: {id_} for {node} is missing, the journal says {expected}"


def _compare_mentions(db: apsw.Connection, replay: Replay) -> Iterator[str]:
    found = {id_: sorted(_names(nodes)) for id_, nodes in db.execute(SQL.mentions_above, (replay.base_seq,))}
    kept = {id_ for (id_,) in db.execute(SQL.record_ids)}
    for id_, nodes in replay.mentions.items():
        if id_ in kept and found.get(id_, []) != sorted(nodes):
            yield f"messages: the mentions of {id_} are not those of its record in the journal"


DELIVERY_RULES: tuple[Rule, ...] = (check_message_records, check_deliveries, check_replay)
