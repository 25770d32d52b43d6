"""Audience: a message to a topic was queued for exactly the nodes that were subscribed and allowed to read it.

The rule replays meshes, members, access, subscriptions and blocks in commit order. It implements the access rules
again, in a small form: an audit that used the relay's code would repeat its faults. The key is a mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from posthouse.model.subjects import matches
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

_ANY_NODE = "*"
_CHANGES = frozenset(
    {"mesh.created", "mesh.changed", "mesh.access_set", "mesh.access_removed", "member.joined", "member.changed"}
    | {"member.left", "member.subscribed", "member.unsubscribed", "member.blocked", "member.unblocked"}
    | {"member.rotated", "member.revoked"}
)
TYPES = _CHANGES | {"message.accepted", "journal.snapshot"}


class MeshChange(msgspec.Struct, array_like=True, tag="change"):
    """A record that changes the mesh."""

    record_type: str
    actor: str
    ref: str
    #: The pattern, the openness of the mesh, the read access or the successor, depending on the type.
    value: Any


class MeshSnapshot(msgspec.Struct, array_like=True, tag="snapshot"):
    """The state of the mesh in a snapshot."""

    is_open: bool
    members: list[str]
    #: Node -> allow or deny, for reading.
    access: dict[str, str | None]
    #: Node and pattern.
    subscriptions: list[tuple[str, str]]
    #: Blocking node and blocked node.
    blocks: list[tuple[str, str]]
    #: Keys that were revoked and have no successor.
    revoked: list[str] = []


class TopicMessage(msgspec.Struct, array_like=True, tag="message"):
    """A message to a topic, and the nodes that the relay considered."""

    sender: str
    id: str
    topic: str
    queued: list[str]
    blocked: list[str]
    #: Readers whose queue was full.
    not_queued: list[str]


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    body = entry.body
    if entry.type == "journal.snapshot":
        yield from _snapshots(body["state"])
    elif entry.type != "message.accepted":
        value = body.get("pattern", body.get("open", body.get("read", body.get("successor"))))
        yield entry.mesh, MeshChange(entry.type, entry.actor, entry.ref, value)
    elif body["destination_kind"] == "topic":
        not_queued = [each["recipient"] for each in body.get("not_queued", ())]
        topic, blocked = body["destination_ref"], body.get("blocked", [])
        yield entry.mesh, TopicMessage(entry.actor, entry.ref, topic, body["recipients"], blocked, not_queued)


def _snapshots(state: dict[str, Any]) -> Iterator[KeyedFact]:
    for mesh in state.get("meshes", ()):
        name = mesh["mesh"]
        yield (
            name,
            MeshSnapshot(
                mesh["is_open"],
                [row["node"] for row in state["members"] if row["mesh"] == name],
                {row["node"]: row["read"] for row in state["access"] if row["mesh"] == name},
                [row[1:] for row in state["subscriptions"] if row[0] == name],
                [row[1:] for row in state["blocks"] if row[0] == name],
                [row["node"] for row in state.get("retired_keys", ()) if row["successor"] is None],
            ),
        )


class MeshAuditor(Auditor):
    """Replay one mesh and check the audience of each message to a topic."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._is_open = False
        self._members: set[str] = set()
        #: Node -> allow or deny, for reading.
        self._access: dict[str, str | None] = {}
        #: Node and pattern.
        self._subscriptions: set[tuple[str, str]] = set()
        #: Blocked node -> the nodes that block it.
        self._blockers: dict[str, set[str]] = {}
        #: Keys that were revoked and have no successor.
        self._revoked: set[str] = set()
        #: Topic -> its readers; cleared by every change.
        self._audiences: dict[str, frozenset[str]] = {}

    def add_step(self, step: Step) -> Iterator[Finding]:
        fact = step.fact
        if isinstance(fact, TopicMessage):
            yield from self._check(step, fact)
            return
        self._audiences.clear()
        if isinstance(fact, MeshSnapshot):
            self._load(fact)
        else:
            self._change(fact.record_type, fact.actor, fact.ref, fact.value)

    def _load(self, snapshot: MeshSnapshot) -> None:
        self._is_open, self._members = snapshot.is_open, set(snapshot.members)
        self._access, self._subscriptions = snapshot.access, set(snapshot.subscriptions)
        self._revoked = set(snapshot.revoked)
        self._blockers = {}
        for node, blocked in snapshot.blocks:
            self._blockers.setdefault(blocked, set()).add(node)

    def _change(self, type_: str, actor: str, ref: str, value: Any) -> None:
        if type_ in ("mesh.created", "mesh.changed"):
            self._is_open = value
        elif type_ == "mesh.access_set":
            self._access[ref] = value or "allow"
        elif type_ == "mesh.access_removed":
            self._access.pop(ref, None)
        elif type_ in ("member.joined", "member.changed"):
            self._members.add(ref)
        elif type_ == "member.left":
            self._members.discard(ref)
            self._subscriptions = {each for each in self._subscriptions if each[0] != ref}
        elif type_ == "member.subscribed":
            self._subscriptions.add((ref, value))
        elif type_ == "member.unsubscribed":
            self._subscriptions.discard((ref, value))
        elif type_ == "member.rotated":
            self._rename(ref, value)
        elif type_ == "member.revoked":
            self._revoked.add(ref)
        elif type_ == "member.blocked":
            self._blockers.setdefault(ref, set()).add(actor)
        else:
            self._blockers.get(ref, set()).discard(actor)

    def _rename(self, node: str, successor: str) -> None:
        """Transfer membership, access, subscriptions and blocks of a key to its successor."""
        self._revoked.discard(node)
        if node in self._members:
            self._members = self._members - {node} | {successor}
        if node in self._access:
            self._access[successor] = self._access.pop(node)
        self._subscriptions = {(successor if each == node else each, pattern) for each, pattern in self._subscriptions}
        if node in self._blockers:
            self._blockers[successor] = self._blockers.pop(node)
        for blockers in self._blockers.values():
            if node in blockers:
                blockers.remove(node)
                blockers.add(successor)

    def _check(self, step: Step, message: TopicMessage) -> Iterator[Finding]:
        sender, topic, queued, blocked = message.sender, message.topic, message.queued, message.blocked
        considered = {*queued, *blocked, *message.not_queued}
        wanted = self._audience(topic) - {sender}
        blockers = self._blockers.get(sender, set())
        for node in sorted(wanted - considered):
            detail = f"{node} was subscribed to {topic} in {self.key}"
            yield self.finding("delivery_missing", step, message.id, detail)
        for node in sorted(considered - wanted):
            detail = f"{node} may not read {topic} in {self.key}"
            yield self.finding("delivery_unexpected", step, message.id, detail)
        for node in sorted(blockers.intersection(queued)):
            yield self.finding("delivery_unexpected", step, message.id, f"{node} blocks {sender}")
        for node in sorted(set(blocked) - blockers):
            yield self.finding("delivery_missing", step, message.id, f"{node} does not block {sender}")

    def _audience(self, topic: str) -> frozenset[str]:
        audience = self._audiences.get(topic)
        if audience is None:
            nodes = {node for node, pattern in self._subscriptions if matches(topic, pattern)}
            audience = self._audiences[topic] = frozenset(node for node in nodes if self._may_read(node))
        return audience

    def _may_read(self, node: str) -> bool:
        access = self._access.get(node) or self._access.get(_ANY_NODE) or "allow"
        return access == "allow" and node not in self._revoked and (self._is_open or node in self._members)


RULE = Rule("audience", TYPES, MeshChange | MeshSnapshot | TopicMessage, _scatter, MeshAuditor)
