"""Keys that end: rotated by their owner, recovered with a recovery key, replaced or revoked by an admin of the relay.

A change is one transaction: the key is retired, everything that it has (memberships with role and name, mailboxes with
their queues and dedupe records, subscriptions, blocks, invites, webhooks) moves to its successor, and the journal
records it. A key has one successor; repeating the same rotation gets the first answer. Coordinates stay under the old
key. Leases stay too; the successor may release them. After the commit the old key has no right anywhere, so its
connections and tokens end. Where the admins of a mesh approve new keys, the successor has its place but no right until
they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from posthouse.keys import public_key, verify
from posthouse.model.errors import error
from posthouse.model.event import RECOVERY_KEY, Coordinate, Event, check_structure, decode_event
from posthouse.model.rotation import KeyEnd, Rotation, proof_bytes, read_recovery_key, read_rotation
from posthouse.relay.accept.mesh_registry import Mesh
from posthouse.relay.meshes.administration import MeshChanges, end_invites
from posthouse.relay.store.event_rows import EventRow, address_term, event_row
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.shared_store import KEY_RETIRED
from posthouse.relay.wire.accept_results import Committed
from posthouse.relay.wire.delivery_rows import UnfinishedDelivery
from posthouse.relay.wire.mesh_rows import RetiredKey

MOVED_PER_RECORD = 200  # keeps a record below 32 KiB
Change = tuple[Callable[[Unit], RetiredKey], Callable[[RetiredKey], None]]


class KeyChanges:
    """Ends keys, one at a time with all other changes of meshes."""

    def __init__(self, changes: MeshChanges, announce: Callable[[Sequence[Committed]], None]) -> None:
        self._changes = changes
        self._meshes = changes.meshes
        self._announce = announce

    async def rotate(self, signed: Event, raw: bytes) -> RetiredKey:
        """Replace a key by the successor that it names, or its recovery key; `signed` is verified."""
        rotation = read_rotation(signed)
        public_key(rotation.successor)
        verify(rotation.successor, proof_bytes(rotation.node, rotation.successor), rotation.proof)
        row = event_row(signed, check_structure(signed), raw)

        def prepare() -> Change:
            if (known := self._repeated(rotation.node, rotation.successor)) is not None:
                return lambda _unit: known, lambda _row: None
            if (refusal := self._meshes.key_error(rotation.signer)) is not None:
                raise refusal
            self._meshes.find(row.mesh)
            committed: list[Committed] = []

            def write(unit: Unit) -> RetiredKey:
                committed.clear()
                naming = _find_naming(unit, rotation) if rotation.is_recovery else None
                reason = KeyEnd.RECOVERED if rotation.is_recovery else KeyEnd.ROTATED
                ends = (reason, rotation.successor, rotation.signer, unit.now_ns)
                retired = self._retire(unit, RetiredKey(rotation.node, *ends, event=raw.decode(), naming_event=naming))
                committed.extend(_store(unit, row))
                return retired

            def apply(retired: RetiredKey) -> None:
                self._meshes.retire(retired)
                self._announce(committed)

            return write, apply

        return await self._changes.make(prepare)

    async def replace(self, actor: str, node: str, successor: str) -> RetiredKey:
        """Give the place of a lost or revoked key to another key; the caller has checked the actor's right."""
        public_key(node)
        public_key(successor)

        def prepare() -> Change:
            if (known := self._repeated(node, successor)) is not None:
                return lambda _unit: known, lambda _row: None
            former = self._meshes.retired.get(node)

            def write(unit: Unit) -> RetiredKey:
                suspect = (None, None) if former is None else (former.suspect_from_ns, former.suspect_after_seq)
                ended = RetiredKey(node, KeyEnd.REPLACED, successor, actor, unit.now_ns, *suspect)
                return self._retire(unit, ended)

            return write, self._meshes.retire

        return await self._changes.make(prepare)

    async def revoke(self, actor: str, node: str, suspect_from_ns: int | None = None) -> RetiredKey:
        """Refuse a key from now on, and mark events that it signed since a given time (default: now).

        A key that has a successor keeps it: then only the mark is set. The caller has checked the actor's right.
        """
        public_key(node)

        def prepare() -> Change:
            former = self._meshes.retired.get(node)

            def write(unit: Unit) -> RetiredKey:
                from_ns = unit.now_ns if suspect_from_ns is None else min(suspect_from_ns, unit.now_ns)
                after_seq = unit.last_seq_before(from_ns)
                if former is not None and former.successor is not None:
                    marked = replace(former, suspect_from_ns=from_ns, suspect_after_seq=after_seq)
                    return self._save(unit, marked, actor)
                ended = RetiredKey(node, KeyEnd.REVOKED, None, actor, unit.now_ns, from_ns, after_seq)
                self._check_known(unit, node)
                for mesh in self._meshes_of(unit, node):
                    end_invites(unit, mesh, node, actor, "creator_revoked")
                    unit.append("member.revoked", mesh=mesh, actor=actor, ref=node)
                return self._save(unit, ended, actor)

            return write, self._apply_revoked

        return await self._changes.make(prepare)

    def history(self, node: str) -> list[RetiredKey]:
        """Return the ends of a key's predecessors and of its successors, the oldest first."""
        chain = [*reversed(self._meshes.former_keys(node)), node]
        while (row := self._meshes.retired.get(chain[-1])) is not None and row.successor is not None:
            chain.append(row.successor)
        return [self._meshes.retired[each] for each in chain if each in self._meshes.retired]

    def _repeated(self, node: str, successor: str) -> RetiredKey | None:
        """Return the end of a key that has this successor already; raise if it has another one."""
        known = self._meshes.retired.get(node)
        if known is None or known.successor is None:
            return None
        if known.successor != successor:
            raise error("already_rotated", node=node, successor=known.successor)
        return known

    def _retire(self, unit: Unit, ended: RetiredKey) -> RetiredKey:
        """Record the end of a key, and move its memberships and queues to its successor."""
        node, successor = ended.node, str(ended.successor)
        self._check_known(unit, node)
        self._check_unused(unit, successor)
        moved = unit.unfinished_deliveries(node)
        for mesh in self._meshes_of(unit, node):
            unit.append("member.rotated", mesh=mesh, actor=ended.actor, ref=node, body={"successor": successor})
        for mesh, rows in groupby(moved, key=lambda row: row.mesh):
            _append_moved(unit, mesh, node, successor, ended.actor, list(rows))
        unit.move_node(node, successor)
        unit.webhooks.move_creator(node, successor)
        self._hold(unit, ended)
        return self._save(unit, ended, ended.actor)

    def _hold(self, unit: Unit, ended: RetiredKey) -> None:
        """Let the successor wait in meshes whose admins approve new keys; Meshes.retire does the same in memory."""
        for mesh in self._meshes.all():
            held = mesh.held_after(ended)
            if held is not None and ended.node not in mesh.held:  # otherwise the entry has moved to the successor
                unit.save_held_key(held)
                unit.append(
                    "member.held", mesh=held.mesh, actor=ended.actor, ref=held.node, body={"former": held.former}
                )

    def _save(self, unit: Unit, ended: RetiredKey, actor: str) -> RetiredKey:
        body: dict[str, Any] = {"reason": ended.reason.value}
        if ended.successor is not None:
            body["successor"] = ended.successor
        if ended.suspect_from_ns is not None:
            body |= {"suspect_from_ns": ended.suspect_from_ns, "suspect_after_seq": ended.suspect_after_seq}
        unit.save_retired_key(ended)
        unit.append(KEY_RETIRED, actor=actor, ref=ended.node, body=body)
        before = self._meshes.retiring.get(ended.node)
        self._meshes.retiring[ended.node] = ended
        unit.on_rollback(lambda: self._put_back(ended.node, before))
        return ended

    def _put_back(self, node: str, before: RetiredKey | None) -> None:
        if before is None:
            self._meshes.retiring.pop(node, None)
        else:
            self._meshes.retiring[node] = before

    def _apply_revoked(self, row: RetiredKey) -> None:
        if row.successor is None:
            self._meshes.retire(row)
        else:  # its rows moved when it got its successor
            self._meshes.retired[row.node] = row

    def _meshes_of(self, unit: Unit, node: str) -> list[str]:
        found = {mesh.row.mesh for mesh in self._meshes.all() if _has_rows(mesh, node)}
        return sorted(found | set(unit.mailbox_meshes(node)))

    def _check_known(self, unit: Unit, node: str) -> None:
        """Raise key_unknown for a key without any row: otherwise strangers could retire any number of keys."""
        if node not in self._meshes.retired and not self._meshes_of(unit, node):
            raise error("key_unknown", node=node)

    def _check_unused(self, unit: Unit, successor: str) -> None:
        if successor in self._meshes.retired:
            raise error("successor_in_use", successor=successor, reason="it was itself retired")
        if self._meshes_of(unit, successor):
            raise error("successor_in_use", successor=successor, reason="this relay already knows it")


def _store(unit: Unit, row: EventRow) -> list[Committed]:
    """Store a rotation as an event, unless it was stored before; regardless of the limits of its mesh."""
    if unit.known([row.event.id]):
        return []
    (seq,) = unit.add_events([row])
    return [Committed(seq, row.event, row.raw, row.mesh, row.recipient)]


def _find_naming(unit: Unit, rotation: Rotation) -> str:
    """Return the event in which the lost key named the signer as its recovery key, or raise recovery_refused."""
    current = unit.find_current([address_term(Coordinate(RECOVERY_KEY, rotation.node, ""))])
    for content in unit.find_contents([each.id for each in current.values()]):
        if content.raw is not None and read_recovery_key(decode_event(content.raw)) == rotation.signer:
            return content.raw.decode()
    raise error("recovery_refused", node=rotation.node, signer=rotation.signer)


def _has_rows(mesh: Mesh, node: str) -> bool:
    is_listed = node in mesh.members or node in mesh.access or node in mesh.subscriptions or node in mesh.blocks
    return is_listed or node in mesh.topics.values() or any(node in blocked for blocked in mesh.blocks.values())


def _append_moved(
    unit: Unit, mesh: str, node: str, successor: str, actor: str, rows: Sequence[UnfinishedDelivery]
) -> None:
    for part in _parts(rows):
        body = {
            "ids": [row.id for row in part],
            "states": [row.state for row in part],
            "senders": [f"{row.sender}/{row.from_agent}" if row.from_agent else row.sender for row in part],
            "agents": [row.to_agent for row in part],
            "recipient": node,
        }
        unit.append("delivery.moved", mesh=mesh, actor=actor, ref=successor, body=body)


def _parts(rows: Sequence[UnfinishedDelivery]) -> Iterable[Sequence[UnfinishedDelivery]]:
    return (rows[start : start + MOVED_PER_RECORD] for start in range(0, len(rows), MOVED_PER_RECORD))
