"""Deliveries: opened once, ended once for each opening, by records that find them in a state that allows it.

The key is one message for one reader. `sent` may be written after an end that overtook it. A confirmation names the
sender of what it closes, and that is compared with who sent the message.
"""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

OPEN = frozenset({"queued", "sent"})
PARKED = frozenset({"rejected", "dead"})
#: outcome -> the states it may end
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
    | {"delivery.requeued"}
    | {f"delivery.{outcome}" for outcome in ENDS}
)


def delivery_steps(entry: Entry) -> Iterator[tuple[str, str, str, list[object]]]:
    """Yield mesh, reader, message id and what happened to the delivery."""
    body, mesh = entry.body, entry.mesh
    kind = entry.type.partition(".")[2]
    if entry.type == "message.accepted":
        for state, readers in (("queued", body["recipients"]), ("blocked", body.get("blocked", ()))):
            for reader in readers:
                yield mesh, reader, entry.ref, ["open", state, entry.actor]
    elif entry.type == "pinch.accepted":
        state = "blocked" if body.get("blocked") else "queued"
        yield mesh, body["recipient"], body["id"], ["open", state, entry.actor]
    elif entry.type == "confirmation.accepted":
        for id_ in body["ids"]:
            yield mesh, entry.actor, id_, ["claim", body["sender"]]
    elif entry.type == "journal.snapshot":
        for row in body["state"].get("deliveries", {}).get("rows", ()):
            yield row["mesh"], row["recipient"], row["id"], ["snapshot", row["state"]]
    elif kind == "requeued":
        yield mesh, body["recipient"], entry.ref, ["requeued"]
    elif kind in PARKED:
        yield mesh, entry.actor, entry.ref, ["end", kind]
    else:
        reader = entry.actor if kind == "sent" else entry.ref
        for id_ in body["ids"]:
            yield mesh, reader, id_, ["sent"] if kind == "sent" else ["end", kind]


def _scatter(entry: Entry) -> Iterator[Part]:
    for mesh, reader, id_, part in delivery_steps(entry):
        yield f"{mesh}\x1f{reader}\x1f{id_}", part


class DeliveryAuditor(Auditor):
    """The state of one delivery."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._mesh, self._reader, self._id = key.split("\x1f")
        self._state: str | None = None
        self._sender: str | None = None

    def take(self, step: Step) -> Iterator[Finding]:
        kind = step.part[0]
        if kind == "open":
            yield from self._open(step)
        elif kind == "snapshot":
            yield from self._compare(step)
        elif self._state is None:
            yield self._finding("delivery_unknown", step, "it was never opened")
        elif kind == "sent":
            self._state = "sent" if self._state == "queued" else self._state
        elif kind == "claim":
            if self._sender not in (None, step.part[1]):
                yield self._finding("confirmation_disagrees", step, f"confirmed to {step.part[1]}, who did not send it")
        else:
            yield from self._end(step, step.part[1] if kind == "end" else kind)

    def _open(self, step: Step) -> Iterator[Finding]:
        if self._state is not None:
            yield self._finding("delivery_opened_twice", step, f"it was {self._state}")
        self._state, self._sender = step.part[1:]

    def _end(self, step: Step, outcome: str) -> Iterator[Finding]:
        allowed = PARKED if outcome == "requeued" else ENDS[outcome]
        if self._state not in allowed:
            yield self._finding("delivery_outcome_twice", step, f"{outcome}, but it was {self._state}")
        self._state = "queued" if outcome == "requeued" else outcome

    def _compare(self, step: Step) -> Iterator[Finding]:
        told = step.part[1]
        if self._state != told and step.seq != self.line.base_seq:
            yield self._finding("snapshot_disagrees", step, f"the snapshot says {told}, its history {self._state}")
        self._state = told

    def _finding(self, code: str, step: Step, what: str) -> Finding:
        return self.found(code, step, self._id, f"for {self._reader} in {self._mesh}: {what}")


RULE = Rule("deliveries", TYPES, _scatter, DeliveryAuditor)
