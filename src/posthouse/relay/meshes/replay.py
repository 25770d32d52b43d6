"""Meshes out of the journal: replaying its records gives the same rows as the tables hold.

Replay starts from nothing, or from the state in the last journal.snapshot. Times of creation and invites are not
part of it: the first stand in the records themselves, the second are secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from posthouse.journal.read import Record
from posthouse.relay.meshes.rows import AccessRow, MemberRow, MeshRows, Role, Verdict

Facts = dict[tuple[str, ...], Any]


class Replay:
    """The facts about meshes after some records, keyed by table and key."""

    def __init__(self) -> None:
        self.facts: Facts = {}

    def apply(self, record: Record) -> None:
        """Take one record into account; types that say nothing about meshes are passed over."""
        step = _STEPS.get(record.type)
        if step is not None:
            step(self.facts, record, record.decoded_body())


def facts_of(rows: MeshRows) -> Facts:
    """Return the facts that rows of a store stand for."""
    facts: Facts = {("mesh", row.mesh): row.is_open for row in rows.meshes}
    facts |= {("member", row.mesh, row.node): (row.name, row.role.value) for row in rows.members}
    facts |= {("access", row.mesh, row.node): _verdicts(row) for row in rows.access}
    facts |= {("topic", row.mesh, row.topic): row.creator for row in rows.topics}
    facts |= {("subscription", *key): True for key in rows.subscriptions}
    facts |= {("block", *key): True for key in rows.blocks}
    return facts


def _verdicts(row: AccessRow) -> tuple[str, str, str]:
    return row.read.value, row.write.value, row.lock.value


def _snapshot(facts: Facts, _record: Record, body: dict[str, Any]) -> None:
    facts.clear()
    facts.update(facts_of(msgspec.convert(body["state"], MeshRows)))


def _mesh(facts: Facts, record: Record, body: dict[str, Any]) -> None:
    facts["mesh", str(record.mesh)] = body["open"]


def _member(facts: Facts, record: Record, body: dict[str, Any]) -> None:
    row = MemberRow(str(record.mesh), str(record.ref), body["name"], Role(body["role"]))
    facts["member", row.mesh, row.node] = (row.name, row.role.value)


def _left(facts: Facts, record: Record, _body: dict[str, Any]) -> None:
    mesh, node = str(record.mesh), str(record.ref)
    facts.pop(("member", mesh, node), None)
    for key in [key for key in facts if key[:3] == ("subscription", mesh, node)]:
        del facts[key]


def _access(facts: Facts, record: Record, body: dict[str, Any]) -> None:
    verdicts = {right: Verdict(body[right]) for right in ("read", "write", "lock")}
    row = AccessRow(str(record.mesh), str(record.ref), **verdicts)
    facts["access", row.mesh, row.node] = _verdicts(row)


def _access_removed(facts: Facts, record: Record, _body: dict[str, Any]) -> None:
    facts.pop(("access", str(record.mesh), str(record.ref)), None)


def _topic(facts: Facts, record: Record, _body: dict[str, Any]) -> None:
    facts["topic", str(record.mesh), str(record.ref)] = record.actor


def _topic_removed(facts: Facts, record: Record, _body: dict[str, Any]) -> None:
    facts.pop(("topic", str(record.mesh), str(record.ref)), None)


def _subscribed(facts: Facts, record: Record, body: dict[str, Any]) -> None:
    facts["subscription", str(record.mesh), str(record.ref), body["pattern"]] = True


def _unsubscribed(facts: Facts, record: Record, body: dict[str, Any]) -> None:
    facts.pop(("subscription", str(record.mesh), str(record.ref), body["pattern"]), None)


def _blocked(facts: Facts, record: Record, _body: dict[str, Any]) -> None:
    facts["block", str(record.mesh), str(record.actor), str(record.ref)] = True


def _unblocked(facts: Facts, record: Record, _body: dict[str, Any]) -> None:
    facts.pop(("block", str(record.mesh), str(record.actor), str(record.ref)), None)


def _pinch_blocked(facts: Facts, record: Record, body: dict[str, Any]) -> None:
    (_blocked if body["blocked"] else _unblocked)(facts, record, body)


_STEPS: dict[str, Callable[[Facts, Record, dict[str, Any]], None]] = {
    "journal.snapshot": _snapshot,
    "mesh.created": _mesh,
    "mesh.changed": _mesh,
    "mesh.access_set": _access,
    "mesh.access_removed": _access_removed,
    "member.joined": _member,
    "member.changed": _member,
    "member.left": _left,
    "member.subscribed": _subscribed,
    "member.unsubscribed": _unsubscribed,
    "member.blocked": _blocked,
    "member.unblocked": _unblocked,
    "pinch.blocked": _pinch_blocked,
    "topic.created": _topic,
    "topic.removed": _topic_removed,
}
