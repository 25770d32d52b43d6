"""The meshes of a store by replay of its journal, and the rule that compares the tables with it.

Replay is pure: records in, facts out, from the beginning or from the last journal.snapshot. A fact is a row of a table
by its key. If you add a table of meshes: 1. its facts and steps here, 2. MeshRows, 3. a planted violation in
tests/relay/ops/test_maintenance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw
import msgspec

from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.node import Role
from posthouse.relay.store.sqlite.meshes_and_locks import read_mesh_rows
from posthouse.relay.wire.mesh_rows import AccessRow, MemberRow, MeshRows, MeshState, Verdict

_RECORDS_PER_READ = 1_000
MeshFacts = dict[tuple[str, ...], Any]


class MeshReplay:
    """The facts about meshes after some records, by table and key."""

    def __init__(self) -> None:
        self.facts: MeshFacts = {}

    def apply(self, record: Record) -> None:
        """Apply one record; records of other areas change nothing."""
        step = _STEPS.get(record.type)
        if step is not None:
            step(self.facts, record, record.decoded_body())


def mesh_facts(rows: MeshRows) -> MeshFacts:
    """Return the facts that the rows of a store state."""
    facts: MeshFacts = {("mesh", row.mesh): row.is_open for row in rows.meshes}
    facts |= {("state", row.mesh): row.state.value for row in rows.meshes if row.state is not MeshState.ACTIVE}
    facts |= {("limits", row.mesh, row.source.value): row.limits for row in rows.limits}
    facts |= {("member", row.mesh, row.node): (row.name, row.role.value) for row in rows.members}
    facts |= {("access", row.mesh, row.node): _verdicts(row) for row in rows.access}
    facts |= {("topic", row.mesh, row.topic): row.creator for row in rows.topics}
    facts |= {("subscription", *key): True for key in rows.subscriptions}
    facts |= {("block", *key): True for key in rows.blocks}
    facts |= {("rule", mesh, str(rule.kind), rule.d_prefix): rule.resource for mesh, rule in rows.fence_rules}
    facts |= {("approval", row.mesh): True for row in rows.meshes if row.approves_keys}
    facts |= {("held", row.mesh, row.node): row.former for row in rows.held_keys}
    facts |= {("key", row.node): (row.reason.value, row.successor) for row in rows.retired_keys}
    return facts


def _verdicts(row: AccessRow) -> tuple[str, str, str]:
    return row.read.value, row.write.value, row.lock.value


def _snapshot(facts: MeshFacts, _record: Record, body: dict[str, Any]) -> None:
    facts.clear()
    facts.update(mesh_facts(msgspec.convert(body["state"], MeshRows)))


def _mesh(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts["mesh", str(record.mesh)] = body["open"]


def _state(state: MeshState) -> Callable[[MeshFacts, Record, dict[str, Any]], None]:
    def step(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
        if state is MeshState.ACTIVE:
            facts.pop(("state", str(record.mesh)), None)
        else:
            facts["state", str(record.mesh)] = state.value

    return step


def _deleted(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    mesh = str(record.mesh)
    for key in [key for key in facts if key[1] == mesh]:
        del facts[key]
    facts["mesh", mesh], facts["state", mesh] = False, MeshState.DELETED.value


def _limits(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts["limits", str(record.mesh), body["source"]] = msgspec.convert(body["limits"], MeshLimits)


def _member(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    row = MemberRow(str(record.mesh), str(record.ref), body["name"], Role(body["role"]))
    facts["member", row.mesh, row.node] = (row.name, row.role.value)


def _left(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    mesh, node = str(record.mesh), str(record.ref)
    facts.pop(("member", mesh, node), None)
    facts.pop(("held", mesh, node), None)
    for key in [key for key in facts if key[:3] == ("subscription", mesh, node)]:
        del facts[key]


def _rotated(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    """Rename a node in all facts about one mesh."""
    mesh, node, successor = str(record.mesh), str(record.ref), body["successor"]
    for key in [key for key in facts if key[1:2] == (mesh,) and node in (*key[2:], facts[key])]:
        value = facts.pop(key)
        facts[tuple(successor if each == node else each for each in key)] = successor if value == node else value


def _approval(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts.pop(("approval", str(record.mesh)), None)
    if body["required"]:
        facts["approval", str(record.mesh)] = True


def _held(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts["held", str(record.mesh), str(record.ref)] = body["former"]


def _released(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    facts.pop(("held", str(record.mesh), str(record.ref)), None)


def _retired(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts["key", str(record.ref)] = (body["reason"], body.get("successor"))


def _access(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    verdicts = {right: Verdict(body[right]) for right in ("read", "write", "lock")}
    row = AccessRow(str(record.mesh), str(record.ref), **verdicts)
    facts["access", row.mesh, row.node] = _verdicts(row)


def _access_removed(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    facts.pop(("access", str(record.mesh), str(record.ref)), None)


def _rule(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts["rule", str(record.mesh), str(body["kind"]), body["d_prefix"]] = body["resource"]


def _rule_removed(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts.pop(("rule", str(record.mesh), str(body["kind"]), body["d_prefix"]), None)


def _topic(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    facts["topic", str(record.mesh), str(record.ref)] = record.actor


def _topic_removed(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    facts.pop(("topic", str(record.mesh), str(record.ref)), None)


def _subscribed(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts["subscription", str(record.mesh), str(record.ref), body["pattern"]] = True


def _unsubscribed(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    facts.pop(("subscription", str(record.mesh), str(record.ref), body["pattern"]), None)


def _blocked(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    facts["block", str(record.mesh), str(record.actor), str(record.ref)] = True


def _unblocked(facts: MeshFacts, record: Record, _body: dict[str, Any]) -> None:
    facts.pop(("block", str(record.mesh), str(record.actor), str(record.ref)), None)


def _pinch_blocked(facts: MeshFacts, record: Record, body: dict[str, Any]) -> None:
    (_blocked if body["blocked"] else _unblocked)(facts, record, body)


_STEPS: dict[str, Callable[[MeshFacts, Record, dict[str, Any]], None]] = {
    "journal.snapshot": _snapshot,
    "mesh.created": _mesh,
    "mesh.changed": _mesh,
    "mesh.suspended": _state(MeshState.SUSPENDED),
    "mesh.resumed": _state(MeshState.ACTIVE),
    "mesh.deleted": _deleted,
    "mesh.limits_set": _limits,
    "mesh.approval_set": _approval,
    "mesh.access_set": _access,
    "mesh.access_removed": _access_removed,
    "mesh.fence_rule_set": _rule,
    "mesh.fence_rule_removed": _rule_removed,
    "member.joined": _member,
    "member.changed": _member,
    "member.left": _left,
    "member.rotated": _rotated,
    "member.held": _held,
    "member.approved": _released,
    "member.refused": _released,
    "key.retired": _retired,
    "member.subscribed": _subscribed,
    "member.unsubscribed": _unsubscribed,
    "member.blocked": _blocked,
    "member.unblocked": _unblocked,
    "pinch.blocked": _pinch_blocked,
    "topic.created": _topic,
    "topic.removed": _topic_removed,
}


def check_meshes(db: apsw.Connection) -> Iterator[str]:
    """Compare the tables of meshes with a replay of the journal."""
    replay, seq = MeshReplay(), 0
    while records := read_after(db, seq, _RECORDS_PER_READ):
        for record in records:
            replay.apply(record)
        seq = records[-1].seq
    yield from _differences(replay.facts, mesh_facts(read_mesh_rows(db)))


def _differences(journal: MeshFacts, tables: MeshFacts) -> Iterator[str]:
    for key in sorted(journal.keys() | tables.keys()):
        if journal.get(key) != tables.get(key):
            yield f"meshes: {' '.join(key)} is {tables.get(key)!r}, but the journal says {journal.get(key)!r}"
