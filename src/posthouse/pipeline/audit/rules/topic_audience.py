"""The audience: a topic's message was queued for exactly those who had subscribed and might read when it came.

Replays meshes, members, access, subscriptions and blocks in the order of commits, with a small reading of the rules of
its own: an audit that used the relay's code would share its faults. The key is a mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from posthouse.model.subjects import matches
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

_EVERYBODY = "*"
_CHANGES = frozenset(
    {"mesh.created", "mesh.changed", "mesh.access_set", "mesh.access_removed", "member.joined", "member.changed"}
    | {"member.left", "member.subscribed", "member.unsubscribed", "member.blocked", "member.unblocked"}
)
TYPES = _CHANGES | {"message.accepted", "journal.snapshot"}


def _scatter(entry: Entry) -> Iterator[Part]:
    body = entry.body
    if entry.type == "journal.snapshot":
        yield from _snapshots(body["state"])
    elif entry.type != "message.accepted":
        told = body.get("pattern", body.get("open", body.get("read")))
        yield entry.mesh, [entry.type, entry.actor, entry.ref, told]
    elif body["destination_kind"] == "topic":
        left_out = [each["recipient"] for each in body.get("not_queued", ())]
        readers = [body["recipients"], body.get("blocked", []), left_out]
        yield entry.mesh, ["message", entry.actor, entry.ref, body["destination_ref"], *readers]


def _snapshots(state: dict[str, Any]) -> Iterator[Part]:
    for mesh in state.get("meshes", ()):
        name = mesh["mesh"]
        yield (
            name,
            [
                "snapshot",
                mesh["is_open"],
                [row["node"] for row in state["members"] if row["mesh"] == name],
                {row["node"]: row["read"] for row in state["access"] if row["mesh"] == name},
                [row[1:] for row in state["subscriptions"] if row[0] == name],
                [row[1:] for row in state["blocks"] if row[0] == name],
            ],
        )


class MeshAuditor(Auditor):
    """One mesh as it stood at each message."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._is_open = False
        self._members: set[str] = set()
        #: node -> allow or deny, of reading
        self._access: dict[str, str] = {}
        self._subscriptions: set[tuple[str, str]] = set()
        #: blocked -> who blocks it
        self._blockers: dict[str, set[str]] = {}
        self._readers: dict[str, frozenset[str]] = {}

    def take(self, step: Step) -> Iterator[Finding]:
        if step.part[0] == "message":
            yield from self._judge(step)
            return
        self._readers.clear()
        if step.part[0] == "snapshot":
            self._begin(*step.part[1:])
        else:
            self._change(*step.part)

    def _begin(self, is_open: bool, members: Any, access: Any, subscriptions: Any, blocks: Any) -> None:
        self._is_open, self._members, self._access = is_open, set(members), dict(access)
        self._subscriptions = {(node, pattern) for node, pattern in subscriptions}
        self._blockers = {}
        for node, blocked in blocks:
            self._blockers.setdefault(blocked, set()).add(node)

    def _change(self, kind: str, actor: str, ref: str, told: Any) -> None:
        if kind in ("mesh.created", "mesh.changed"):
            self._is_open = told
        elif kind == "mesh.access_set":
            self._access[ref] = told or "allow"
        elif kind == "mesh.access_removed":
            self._access.pop(ref, None)
        elif kind in ("member.joined", "member.changed"):
            self._members.add(ref)
        elif kind == "member.left":
            self._members.discard(ref)
            self._subscriptions = {each for each in self._subscriptions if each[0] != ref}
        elif kind == "member.subscribed":
            self._subscriptions.add((ref, told))
        elif kind == "member.unsubscribed":
            self._subscriptions.discard((ref, told))
        elif kind == "member.blocked":
            self._blockers.setdefault(ref, set()).add(actor)
        else:
            self._blockers.get(ref, set()).discard(actor)

    def _judge(self, step: Step) -> Iterator[Finding]:
        _kind, sender, id_, topic, queued, blocked, left_out = step.part
        wanted = self._audience(topic) - {sender}
        blockers = self._blockers.get(sender, set())
        for node in sorted(wanted - {*queued, *blocked, *left_out}):
            yield self.found("delivery_missing", step, id_, f"{node} had subscribed to {topic} in {self.key}")
        for node in sorted({*queued, *blocked, *left_out} - wanted):
            yield self.found("delivery_unexpected", step, id_, f"{node} had no part in {topic} of {self.key}")
        for node in sorted(blockers.intersection(queued)):
            yield self.found("delivery_unexpected", step, id_, f"{node} blocks {sender}")
        for node in sorted(set(blocked) - blockers):
            yield self.found("delivery_missing", step, id_, f"{node} does not block {sender}")

    def _audience(self, topic: str) -> frozenset[str]:
        readers = self._readers.get(topic)
        if readers is None:
            nodes = {node for node, pattern in self._subscriptions if matches(topic, pattern)}
            readers = self._readers[topic] = frozenset(node for node in nodes if self._may_read(node))
        return readers

    def _may_read(self, node: str) -> bool:
        verdict = self._access.get(node) or self._access.get(_EVERYBODY) or "allow"
        return verdict == "allow" and (self._is_open or node in self._members)


RULE = Rule("audience", TYPES, _scatter, MeshAuditor)
