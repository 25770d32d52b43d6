"""What the most important tables must say, worked out in plain Python from the rows of a history."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from tests.pipeline.tables.history import HOUR_NS, WRONG_COSTS, History, Row

MOVED = "moved"
Key = tuple[str, str]


def delivery_states(history: History) -> dict[Key, str]:
    """Return the state of each delivery of the relay that survived, by reader and message id."""
    states: dict[Key, str] = {}
    for row in _kept(history):
        if row["type"] == "delivery.sent":
            key = (row["actor"], json.loads(row["body"])["ids"][0])
            if states.get(key) == "queued":
                states[key] = "sent"
        states |= _changed_states(row)
    return states


def _changed_states(row: Row) -> dict[Key, str]:
    """Return the states that a record gives to deliveries of the relay, by reader and message id."""
    if row["mesh"] == "pinch" or row["type"] == "delivery.sent":
        return {}
    body, fact = json.loads(row["body"]), row["type"].rpartition(".")[2]
    if row["type"] == "message.accepted":
        opened = {(node, row["ref"]): "queued" for node in body["recipients"]}
        return opened | {(node, row["ref"]): "blocked" for node in body.get("blocked", [])}
    if row["type"] == "delivery.moved":
        ended = {(body["recipient"], id_): MOVED for id_ in body["ids"]}
        return ended | {(row["ref"], id_): state for id_, state in zip(body["ids"], body["states"], strict=True)}
    if row["type"] == "delivery.requeued":
        return {(body["recipient"], row["ref"]): "queued"}
    if row["type"] in ("delivery.rejected", "delivery.dead"):
        return {(row["actor"], row["ref"]): fact}
    return {(row["ref"], id_): fact for id_ in body["ids"]} if row["type"].startswith("delivery.") else {}


def talks(history: History) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return deliveries and how many of them were confirmed, by the day on which they opened, sender and reader."""
    senders = {row["ref"]: row["actor"] for row in history.journal if row["type"] == "message.accepted"}
    opened_ns: dict[Key, int] = {}
    for row in _kept(history):
        for key in _changed_states(row):
            opened_ns.setdefault(key, row["at_ns"])
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for (reader, id_), state in delivery_states(history).items():
        if state != MOVED:
            entry = sums[_day(opened_ns[reader, id_]), senders[id_], reader]
            entry[0] += 1
            entry[1] += state == "confirmed"
    return {key: (count, confirmed) for key, (count, confirmed) in sums.items()}


def costs(history: History) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return messages and ten-millionths of a dollar by day, sender and model, of the relay's messages."""
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    lost = {(row["epoch"], row["seq"]) for row in history.journal if history.is_lost(row)}
    for event in history.events:
        if (event["epoch"], event["seq"]) in lost or event["event"] is None:
            continue
        usage = json.loads(json.loads(event["event"])["tags"][1][1]).get("usage")
        if usage is not None:
            entry = sums[_day(event["at_ns"]), event["pubkey"], usage["model"]]
            entry[0] += 1
            entry[1] += 0 if usage["cost_usd"] in WRONG_COSTS else round(usage["cost_usd"] * 10**7)
    return {key: (count, cost) for key, (count, cost) in sums.items()}


def messages_per_hour(history: History) -> Counter[int]:
    """Return how many messages the relay accepted, by the number of the hour since 1970."""
    return Counter(row["at_ns"] // HOUR_NS for row in _kept(history) if row["type"] == "message.accepted")


def refusals(history: History) -> dict[tuple[str, str, str, str], tuple[int, int]]:
    """Return how many were refused and in how many minutes, by day, source, code and key; dead letters included."""
    sums: Counter[tuple[str, str, str, str]] = Counter()
    minutes: dict[tuple[str, str, str, str], set[int]] = defaultdict(set)
    for row in _kept(history):
        body = json.loads(row["body"])
        if row["type"] in ("refused", "bus.refused"):
            code, key, minute, count = row["ref"], body["key"], body["minute"], body["count"]
        elif row["type"] == "bus.dead" and "refused" in body:
            code, key, count = body["refused"], f"{row['actor']} {body['subject']}", 1
            minute = body["created_at_ms"] // 60_000
        else:
            continue
        entry = (_day(minute * 60 * 10**9), "relay" if row["type"] == "refused" else "bus", code, key)
        sums[entry] += count
        minutes[entry].add(minute)
    return {entry: (count, len(minutes[entry])) for entry, count in sums.items()}


def conversations(history: History) -> Counter[str]:
    """Return how many messages each conversation of the relay has."""
    said: dict[str, Any] = {}
    for event in history.events:
        if event["event"] is not None and not history.is_lost(event):
            said[event["id"]] = json.loads(json.loads(event["event"])["tags"][1][1]).get("conversation_id")
    parents = {
        row["ref"]: json.loads(row["body"]).get("reply_to")
        for row in _kept(history)
        if row["type"] == "message.accepted"
    }

    def find(id_: str) -> str:
        while True:
            if (named := said.get(id_)) is not None:
                return str(named)
            parent = parents.get(id_)
            if parent is None:
                return id_
            id_ = parent

    return Counter(find(id_) for id_ in parents)


def _kept(history: History) -> list[Row]:
    return [row for row in history.journal if not history.is_lost(row)]


def _day(at_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ns // 10**9, UTC).date().isoformat()
