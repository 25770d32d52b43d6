"""Deliveries: opened once, ended once per opening, and every record finds the delivery in a state that allows it.

The key is one message for one reader. A `sent` record may follow an end that overtook it. A confirmation names the
sender of the message that it closes, which must be the actual sender. A delivery whose reader rotated its key continues
under the successor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

OPEN = frozenset({"queued", "sent"})
PARKED = frozenset({"rejected", "dead"})
#: Outcome -> the states that allow it.
ENDS = {
    "confirmed": OPEN | PARKED,
    "purged": OPEN | PARKED,
    "expired": OPEN,
    "blocked": OPEN,
    "rejected": OPEN,
    "dead": OPEN,
}
TYPES = frozenset(
    {"message.accepted", "confirmation.accepted", "pinch.accepted", "journal.snapshot", "delivery.sent"}
    | {"delivery.requeued", "delivery.moved"}
    | {f"delivery.{outcome}" for outcome in ENDS}
)


class Opened(msgspec.Struct, array_like=True, tag="opened"):
    """The message was accepted for the reader."""

    state: str
    sender: str


class Sent(msgspec.Struct, array_like=True, tag="sent"):
    """The message was sent to the reader."""


class Claimed(msgspec.Struct, array_like=True, tag="claimed"):
    """The reader signed a confirmation that names this sender."""

    sender: str


class Ended(msgspec.Struct, array_like=True, tag="ended"):
    """The delivery ended."""

    outcome: str


class Requeued(msgspec.Struct, array_like=True, tag="requeued"):
    """An operator returned a dead letter to the queue."""


class MovedAway(msgspec.Struct, array_like=True, tag="moved_away"):
    """The reader rotated its key, so the delivery continues under the successor."""

    state: str


class MovedHere(msgspec.Struct, array_like=True, tag="moved_here"):
    """The delivery of a key that the reader has replaced continues here."""

    state: str


class SnapshotState(msgspec.Struct, array_like=True, tag="snapshot"):
    """A snapshot states this state."""

    state: str


DeliveryFact = Opened | Sent | Claimed | Ended | Requeued | MovedAway | MovedHere | SnapshotState


class DeliveryStep(NamedTuple):
    """A fact about one delivery."""

    mesh: str
    reader: str
    message_id: str
    fact: DeliveryFact


def delivery_steps(entry: Entry) -> Iterator[DeliveryStep]:
    """Yield the facts about deliveries that a record states."""
    body, mesh = entry.body, entry.mesh
    kind = entry.type.partition(".")[2]
    if entry.type == "message.accepted":
        for state, readers in (("queued", body["recipients"]), ("blocked", body.get("blocked", ()))):
            for reader in readers:
                yield DeliveryStep(mesh, reader, entry.ref, Opened(state, entry.actor))
    elif entry.type == "pinch.accepted":
        state = "blocked" if body.get("blocked") else "queued"
        yield DeliveryStep(mesh, body["recipient"], body["id"], Opened(state, entry.actor))
    elif entry.type == "confirmation.accepted":
        for id_ in body["ids"]:
            yield DeliveryStep(mesh, entry.actor, id_, Claimed(body["sender"]))
    elif entry.type == "journal.snapshot":
        for row in body["state"].get("deliveries", {}).get("rows", ()):
            yield DeliveryStep(row["mesh"], row["recipient"], row["id"], SnapshotState(row["state"]))
    elif kind == "moved":
        for id_, state in zip(body["ids"], body["states"], strict=True):
            yield DeliveryStep(mesh, body["recipient"], id_, MovedAway(state))
            yield DeliveryStep(mesh, entry.ref, id_, MovedHere(state))
    elif kind == "requeued":
        yield DeliveryStep(mesh, body["recipient"], entry.ref, Requeued())
    elif kind in PARKED:
        yield DeliveryStep(mesh, entry.actor, entry.ref, Ended(kind))
    else:
        reader, fact = (entry.actor, Sent()) if kind == "sent" else (entry.ref, Ended(kind))
        for id_ in body["ids"]:
            yield DeliveryStep(mesh, reader, id_, fact)


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    for mesh, reader, id_, fact in delivery_steps(entry):
        yield f"{mesh}\x1f{reader}\x1f{id_}", fact


class DeliveryAuditor(Auditor):
    """Replay the states of one delivery."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._mesh, self._reader, self._id = key.split("\x1f")
        self._state: str | None = None
        self._sender: str | None = None

    def add_step(self, step: Step) -> Iterator[Finding]:
        match step.fact:
            case Opened() as opened:
                yield from self._open(step, opened)
            case SnapshotState(state):
                yield from self._compare(step, state)
            case MovedHere(state):
                yield from self._open(step, Opened(state, ""))
            case _ if self._state is None:
                yield self._finding("delivery_unknown", step, "it was never opened")
            case Sent():
                self._state = "sent" if self._state == "queued" else self._state
            case Claimed(sender):
                if self._sender not in (None, "", sender):
                    yield self._finding("confirmation_disagrees", step, f"the confirmation names {sender} as sender")
            case Ended(outcome):
                yield from self._change(step, outcome, ENDS[outcome], outcome)
            case MovedAway(state):
                yield from self._change(step, "moved", frozenset({state}), "moved")
            case Requeued():
                yield from self._change(step, "requeued", PARKED, "queued")

    def _open(self, step: Step, opened: Opened) -> Iterator[Finding]:
        if self._state is not None:
            yield self._finding("delivery_opened_twice", step, f"it was already {self._state}")
        self._state, self._sender = opened.state, opened.sender

    def _change(self, step: Step, change: str, allowed: frozenset[str], state: str) -> Iterator[Finding]:
        if self._state not in allowed:
            yield self._finding("delivery_outcome_twice", step, f"{change}, but it was {self._state}")
        self._state = state

    def _compare(self, step: Step, state: str) -> Iterator[Finding]:
        if self._state != state and step.seq != self.lineage.base_seq:
            detail = f"the snapshot states {state}, the history {self._state}"
            yield self._finding("snapshot_disagrees", step, detail)
        self._state = state

    def _finding(self, code: str, step: Step, detail: str) -> Finding:
        return self.finding(code, step, self._id, f"for {self._reader} in {self._mesh}: {detail}")


RULE = Rule("deliveries", TYPES, DeliveryFact, _scatter, DeliveryAuditor)
