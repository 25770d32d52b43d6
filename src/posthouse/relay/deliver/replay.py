"""Deliveries out of the journal: its records give the state of every delivery, and show two outcomes of one opening.

Pure: records in, states out; whoever has a journal can do it. Replay starts from nothing, or from the open and parked
deliveries in the last journal.snapshot; what had ended before it is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from posthouse.journal.record import Record
from posthouse.relay.deliver.rows import OPEN, PARKED, State

#: mesh, recipient, message id
Key = tuple[str, str, str]
_UNFINISHED = OPEN | PARKED


class Replay:
    """States of deliveries after some records."""

    def __init__(self) -> None:
        self.states: dict[Key, str] = {}
        #: message id -> mentioned nodes, of the messages whose record was seen
        self.mentions: dict[str, list[str]] = {}
        #: seq of the snapshot it started from
        self.base_seq = 0
        #: sentences about records that cannot be true
        self.faults: list[str] = []

    def apply(self, record: Record) -> None:
        """Take one record into account; types that say nothing about deliveries are passed over."""
        step = _STEPS.get(record.type)
        if step is not None:
            step(self, record, record.decoded_body())

    def move(self, record: Record, node: str, ids: Iterable[str], allowed: Collection[str], state: str) -> None:
        """Give deliveries of one reader another state; from any other than an allowed one it is a fault."""
        for id_ in ids:
            key = (str(record.mesh), node, id_)
            before = self.states.get(key)
            if before is None or before not in allowed:
                self.faults.append(f"deliveries: record {record.seq} ({record.type}) finds {id_} for {node} {before}")
            self.states[key] = state


def _accepted(replay: Replay, record: Record, body: dict[str, Any]) -> None:
    id_, mesh = str(record.ref), str(record.mesh)
    for node in body["recipients"]:
        replay.states[mesh, node, id_] = State.QUEUED
    for node in body.get("blocked", ()):
        replay.states[mesh, node, id_] = State.BLOCKED
    replay.mentions[id_] = list(body.get("mentions", ()))


def _pinch_accepted(replay: Replay, record: Record, body: dict[str, Any]) -> None:
    state = State.BLOCKED if body.get("blocked") else State.QUEUED
    replay.states[str(record.mesh), body["recipient"], body["id"]] = state


def _sent(replay: Replay, record: Record, body: dict[str, Any]) -> None:
    for id_ in body["ids"]:
        key = (str(record.mesh), str(record.actor), id_)
        if replay.states.get(key) == State.QUEUED:  # it may have ended while it was on its way
            replay.states[key] = State.SENT


def _ends_many(state: str, allowed: frozenset[State]) -> Callable[[Replay, Record, dict[str, Any]], None]:
    def step(replay: Replay, record: Record, body: dict[str, Any]) -> None:
        replay.move(record, str(record.ref), body["ids"], allowed, state)

    return step


def _parks(state: str) -> Callable[[Replay, Record, dict[str, Any]], None]:
    def step(replay: Replay, record: Record, _body: dict[str, Any]) -> None:
        replay.move(record, str(record.actor), [str(record.ref)], OPEN, state)

    return step


def _requeued(replay: Replay, record: Record, body: dict[str, Any]) -> None:
    replay.move(record, body["recipient"], [str(record.ref)], PARKED, State.QUEUED)


def _snapshot(replay: Replay, record: Record, body: dict[str, Any]) -> None:
    replay.base_seq = record.seq
    rows = body["state"].get("deliveries", {}).get("rows", [])
    replay.states = {(row["mesh"], row["recipient"], row["id"]): row["state"] for row in rows}
    replay.mentions.clear()
    replay.faults.clear()  # what came before is replaced by the snapshot


_STEPS: dict[str, Callable[[Replay, Record, dict[str, Any]], None]] = {
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
    "journal.snapshot": _snapshot,
}
TYPES = frozenset(_STEPS)
