"""Random histories of all stores, as the pipeline's bronze tables hold them; seeded, so that a failure comes again.

A history is plausible rather than possible: facts follow each other as they may, also across a restore that loses a
tail, and the oracle and the tables must make the same of them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

HOUR_NS = 3_600 * 10**9
START_NS = 1_790_000_000 * 10**9
JOURNAL = ("epoch", "seq", "at_ns", "type", "mesh", "actor", "ref", "body")
EVENTS = (
    "epoch",
    "seq",
    "at_ns",
    "type",
    "mesh",
    "id",
    "pubkey",
    "kind",
    "created_at_ns",
    "recipient",
    "expiration_s",
    "event",
)
JOURNAL_SCHEMA = (
    "epoch string, seq bigint, at_ns bigint, type string, mesh string, actor string, ref string, body string"
)
EVENTS_SCHEMA = (
    "epoch string, seq bigint, at_ns bigint, type string, mesh string, id string, pubkey string, kind bigint, "
    "created_at_ns bigint, recipient string, expiration_s bigint, event string"
)
EPOCHS_SCHEMA = "epoch string, parent string, fork_seq bigint, store string, url string, started_at_ns bigint"
#: What a sender may claim although it is no amount of dollars.
WRONG_COSTS = ("NaN", "free", -5, 1e300)
Row = dict[str, Any]


@dataclass
class Epoch:
    """One stretch of a store's history."""

    name: str
    parent: str | None
    fork_seq: int
    store: str
    root: str


@dataclass
class History:
    """Bronze as rows, in the order in which they were written."""

    journal: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)

    def limit(self, epoch: str) -> int | None:
        """Return the last seq of an epoch that restores have left; None when they left all."""
        forks = [each.fork_seq for each in self.epochs if each.parent is not None and epoch in self._ancestors(each)]
        return min(forks, default=None)

    def is_lost(self, row: Row) -> bool:
        """Tell whether a restore has lost a row."""
        limit = self.limit(row["epoch"])
        return limit is not None and row["seq"] > limit

    def _ancestors(self, epoch: Epoch) -> set[str]:
        by_name, line = {each.name: each for each in self.epochs}, set[str]()
        while epoch.parent is not None:
            line.add(epoch.parent)
            epoch = by_name[epoch.parent]
        return line


class Writer:
    """Writes random facts into one store after the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.history = History()
        self.now_ns = START_NS
        self._heads: dict[str, int] = {}
        self._nodes = [f"ed25519:{i:064x}" for i in range(1, 6)]
        self._ids = 0
        self._open: dict[tuple[str, str], str] = {}
        self._messages: list[str] = []
        self._senders: dict[str, str] = {}
        self._tokens: dict[str, int] = {}
        self._rows: list[str] = []

    def begin(self, store: str, parent: str | None = None, fork_seq: int = 0) -> str:
        """Begin an epoch of a store."""
        name = f"{store}-{len(self.history.epochs)}"
        root = name if parent is None else next(e.root for e in self.history.epochs if e.name == parent)
        self.history.epochs.append(Epoch(name, parent, fork_seq, store, root))
        self._heads[name] = fork_seq
        return name

    def append(self, epoch: str, type_: str, body: Row, **columns: str | None) -> Row:
        """Write one record."""
        self._heads[epoch] += 1
        self.now_ns += self.random.randrange(HOUR_NS // 3)
        row = dict.fromkeys(JOURNAL) | {"epoch": epoch, "seq": self._heads[epoch], "at_ns": self.now_ns}
        row |= {"type": type_, "body": json.dumps(body, separators=(",", ":"))} | columns
        self.history.journal.append(row)
        return row

    def head(self, epoch: str) -> int:
        return self._heads[epoch]

    def relay(self, epoch: str) -> None:
        """Write one random fact of a relay."""
        steps = (self._message, self._message, self._delivery, self._delivery, self._lock, self._refusal, self._pinch)
        self.random.choice(steps)(epoch)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.random.getrandbits(128):032x}{self._ids:032x}"

    def _message(self, epoch: str) -> None:
        id_, sender = self._new_id(), self.random.choice(self._nodes)
        readers = self.random.sample(self._nodes, self.random.randrange(4))
        blocked = [readers.pop()] if readers and self.random.random() < 0.2 else []
        body: Row = {"size": self.random.randrange(100, 999), "client_message_id": f"c{self._ids}", "fingerprint": "00"}
        body |= {"destination_kind": "topic", "destination_ref": "team.news", "recipients": readers}
        body |= {"blocked": blocked} if blocked else {}
        if self._messages and self.random.random() < 0.6:
            body["reply_to"] = self.random.choice(self._messages) if self.random.random() < 0.9 else self._new_id()
        row = self.append(epoch, "message.accepted", body, mesh="main", actor=sender, ref=id_)
        self._event(row)
        self._messages.append(id_)
        self._senders[id_] = sender
        self._open |= {(node, id_): "queued" for node in readers}

    def _event(self, row: Row) -> None:
        meta: Row = {}
        if self.random.random() < 0.5:
            usage = {"model": self.random.choice(["small", "large"]), "input_tokens": 10, "output_tokens": 3}
            cost = self.random.randrange(1, 10**6)
            wrong = {
                "input_tokens": "many",
                "output_tokens": -3,
                "cached_tokens": 2**63,
                "cost_usd": WRONG_COSTS[cost % 4],
            }
            meta["usage"] = usage | (wrong if cost % 5 == 0 else {"cost_usd": cost / 10**7})
        if self.random.random() < 0.1:
            meta["conversation_id"] = f"talk-{self.random.randrange(3)}"
        tags = [["mesh", "main"], ["meta", json.dumps(meta)], ["priority", self.random.choice(["now", "low"])]]
        content = None if self.random.random() < 0.1 else json.dumps({"tags": tags, "content": "x"})
        event = {name: row.get(name) for name in EVENTS} | {"id": row["ref"], "pubkey": row["actor"], "kind": 1000}
        self.history.events.append(event | {"created_at_ns": row["at_ns"], "event": content})

    def _delivery(self, epoch: str) -> None:
        if not self._open:
            return
        node, id_ = self.random.choice(sorted(self._open))
        fact = self.random.choice(
            ["sent", "sent", "confirmed", "rejected", "dead", "expired", "purged", "requeued", "moved"]
        )
        many: Row = {"ids": [id_]}
        if fact == "sent":
            self.append(
                epoch,
                "delivery.sent",
                many | {"was_stored": [True], "attempts": [1]},
                actor=node,
                ref=node,
                mesh="main",
            )
        elif fact in ("rejected", "dead"):
            self.append(epoch, f"delivery.{fact}", {"reason": "no", "attempts": 2}, actor=node, ref=id_, mesh="main")
        elif fact == "requeued":
            body = {"recipient": node, "from_state": "dead"}
            self.append(epoch, "delivery.requeued", body, actor="op", ref=id_, mesh="main")
        elif fact == "moved":
            successor = self.random.choice([each for each in self._nodes if each != node])
            states = {"states": [self.random.choice(["queued", "sent", "dead"])]}
            body = many | states | {"senders": [self._senders[id_]], "agents": [""], "recipient": node}
            self.append(epoch, "delivery.moved", body, actor=successor, ref=successor, mesh="main")
            self._open[successor, id_] = self._open.pop((node, id_))
        else:
            extra: Row = {"was_stored": [False], "confirmation": "00"} if fact == "confirmed" else {}
            self.append(epoch, f"delivery.{fact}", many | extra, actor=node, ref=node, mesh="main")
            del self._open[node, id_]

    def _lock(self, epoch: str) -> None:
        resource = self.random.choice(["db", "deploy"])
        owner, token = self.random.choice(self._nodes), self._tokens.get(resource, 0)
        grant = {
            "owner": owner,
            "lease_ms": 1_000,
            "run_id": "r1",
            "granted_boot_ns": self.now_ns,
            "deadline_boot_ns": 0,
        }
        fact = self.random.choice(["acquired", "taken_over", "renewed", "released"])
        if fact in ("acquired", "taken_over"):
            self._tokens[resource] = token + 1
            grant |= {"token": token + 1, "wait_ms": self.random.randrange(500)}
            if fact == "taken_over":
                grant |= {"former_token": token, "former_owner": owner, "former_deadline_boot_ns": 0}
        elif fact == "released":
            grant = {"owner": owner, "token": token, "run_id": "r1", "boot_ns": self.now_ns}
        else:
            grant["token"] = token
        self.append(epoch, f"lock.{fact}", grant, mesh="main", actor=owner, ref=resource)

    def _refusal(self, epoch: str) -> None:
        key, minute = self.random.choice(self._nodes), self.now_ns // (60 * 10**9)
        body = {"code": "rate_limited", "key": key, "minute": minute, "count": self.random.randrange(1, 50)}
        self.append(epoch, "refused", body, actor=key, ref="rate_limited")

    def _pinch(self, epoch: str) -> None:
        id_ = f"pinch-{self._ids}-{self.head(epoch)}"
        body: Row = {"recipient": "pinch:b@h", "message_type": 4, "size": 80, "id": f"delivery-{id_}"}
        self.append(epoch, "pinch.accepted", body, mesh="pinch", actor="pinch:a@h", ref=id_)
        if self.random.random() < 0.5:
            closed = {"ids": [body["id"]], "was_stored": [True], "confirmation": id_}
            self.append(epoch, "delivery.confirmed", closed, mesh="pinch", actor="pinch:b@h", ref="pinch:b@h")

    def bus(self, epoch: str) -> None:
        """Write one random fact of a bus."""
        id_, subject = f"01{self._new_id()[:24]}", self.random.choice(["relay.agent.a", "relay.agent.b"])
        place = {"endpoint": subject, "endpoint_hash": f"hash-{subject}"}
        payload = {"content": "x", "usage": {"model": "small", "inputTokens": 1, "outputTokens": 2, "costUsd": 0.25}}
        envelope = {"id": id_, "subject": subject, "from": "relay.agent.c", "payload": payload}
        published = place | {"envelope": envelope}
        self.append(epoch, "bus.published", published, actor="relay.agent.c", ref=id_)
        fact = self.random.choice(["handled", "failed", "dead", "refused", "none"])
        letter = place | {"subject": subject, "created_at_ms": 1, "expires_at_ms": 2, "reason": "broken"}
        if fact == "handled":
            self.append(epoch, "bus.handled", place | {"handler_ms": 7}, ref=id_)
        elif fact in ("failed", "dead"):
            if fact == "dead" and self.random.random() < 0.5:
                letter |= {"created_at_ms": self.random.randrange(10) * 60_000, "refused": "access_denied"}
            self.append(epoch, f"bus.{fact}", letter, actor="relay.agent.c", ref=id_)
            if self.random.random() < 0.5:
                self.append(epoch, "bus.purged", {"ids": [id_]}, ref=place["endpoint_hash"])
        elif fact == "refused":
            body = {"reason": "backpressure", "key": "a b", "minute": 5, "count": 2}
            self.append(epoch, "bus.refused", body, actor="a", ref="backpressure")

    def outbox(self, epoch: str) -> None:
        """Write one random fact of an outbox."""
        row_id, client_id = f"row{self._ids}-{self.head(epoch)}", {"client_message_id": f"o{self.head(epoch)}"}
        self.append(
            epoch,
            "outbox.queued",
            client_id | {"fingerprint": "00", "destination": "bob", "size": 9},
            mesh="main",
            ref=row_id,
        )
        self._rows.append(row_id)
        if self.random.random() < 0.7:
            self.append(epoch, "outbox.inflight", {"ids": self._rows[-2:]}, mesh="main", ref=row_id)
            self.append(epoch, "outbox.done", client_id | {"message_id": "m", "history_id": 1}, mesh="main", ref=row_id)
        elif self.random.random() < 0.5:
            self.append(epoch, "outbox.dead", client_id | {"code": "topic_unknown"}, mesh="main", ref=row_id)

    def inbox(self, epoch: str) -> None:
        """Write one random fact of an inbox."""
        row_id = f"in{self.head(epoch)}"
        body = {"client_message_id": row_id, "message_id": "m", "size": 5}
        self.append(epoch, "inbox.received", body, mesh="main", actor=self._nodes[0], ref=row_id)
        if self.random.random() < 0.5:
            self.append(epoch, "inbox.seen", {"ids": [row_id]}, mesh="main", ref=row_id)


def write_history(seed: int, steps: int = 60) -> History:
    """Return a history of a relay that is restored once, a bus and a daemon."""
    writer = Writer(seed)
    relay, bus = writer.begin("relay"), writer.begin("bus")
    outbox, inbox = writer.begin("outbox"), writer.begin("inbox")
    restore_at = writer.random.randrange(steps // 2, steps)
    for step in range(steps):
        if step == restore_at:
            relay = writer.begin("relay", relay, writer.head(relay) * 2 // 3)
        for _ in range(3):
            writer.relay(relay)
        writer.bus(bus)
        writer.outbox(outbox)
        writer.inbox(inbox)
    return writer.history
