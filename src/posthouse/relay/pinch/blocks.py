"""Blocks between Pinch addresses: silent, in one direction, kept for ever, and taking what is queued with them."""

from __future__ import annotations

from collections.abc import Callable

from posthouse.model.errors import error
from posthouse.model.node import PINCH_MESH
from posthouse.relay.deliver.mailboxes import Mailboxes
from posthouse.relay.deliver.rows import NONE_CLOSED, Closed
from posthouse.relay.meshes.change import Changes
from posthouse.relay.meshes.participation import MAX_BLOCKS, MAX_ROWS
from posthouse.relay.store.interface import Unit

Change = tuple[Callable[[Unit], Closed], Callable[[Closed], None]]


class Blocks:
    """Who takes nothing from whom."""

    def __init__(self, changes: Changes, mailboxes: Mailboxes) -> None:
        self._changes = changes
        self._mailboxes = mailboxes

    async def block(self, blocker: str, blocked: str) -> None:
        """Take nothing more from an address, nor what is queued; doing so again changes nothing."""

        def prepare() -> Change:
            rows = self._changes.meshes.find(PINCH_MESH).blocks
            if blocked in rows.get(blocker, ()):
                return _nothing
            if len(rows.get(blocker, ())) >= MAX_BLOCKS or sum(map(len, rows.values())) >= MAX_ROWS:
                raise error("mesh_row_limit", mesh=PINCH_MESH, count=len(rows.get(blocker, ())), what="blocks")

            def take_over(closed: Closed) -> None:
                rows[blocker].add(blocked)
                self._mailboxes.take_closed(closed)

            return lambda unit: _block(unit, blocker, blocked), take_over

        await self._changes.make(prepare)

    async def unblock(self, blocker: str, blocked: str) -> None:
        """Take from an address again what it sends from now on."""

        def prepare() -> Change:
            rows = self._changes.meshes.find(PINCH_MESH).blocks
            if blocked not in rows.get(blocker, ()):
                return _nothing

            def take_over(_closed: Closed) -> None:
                rows[blocker].discard(blocked)
                if not rows[blocker]:
                    del rows[blocker]

            return lambda unit: _unblock(unit, blocker, blocked), take_over

        await self._changes.make(prepare)


def _block(unit: Unit, blocker: str, blocked: str) -> Closed:
    unit.save_block(PINCH_MESH, blocker, blocked)
    closed = unit.deliveries.block(PINCH_MESH, blocker, blocked)
    dropped = [message_id.decode() for message_id in unit.pinch.message_ids(closed.seqs)]
    body = {"blocked": True, "dropped": dropped}
    unit.append("pinch.blocked", mesh=PINCH_MESH, actor=blocker, ref=blocked, body=body)
    return closed


def _unblock(unit: Unit, blocker: str, blocked: str) -> Closed:
    unit.remove_block(PINCH_MESH, blocker, blocked)
    unit.append("pinch.blocked", mesh=PINCH_MESH, actor=blocker, ref=blocked, body={"blocked": False})
    return NONE_CLOSED


def _none_closed(_unit: Unit) -> Closed:
    """Write nothing: it is so already."""
    return NONE_CLOSED


_nothing: Change = (_none_closed, lambda _closed: None)
