"""Who is online in a mesh, told to all open mailboxes of it.

Changes that happen together go out together, as one frame that all connections share; who leaves and comes back
within a moment was never away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from posthouse.relay.stream.frame import command_text, list_text, text_frame

if TYPE_CHECKING:
    from posthouse.relay.deliver.mailbox import Mailbox

_GATHER_S = 0.02


class Presences:
    """Open mailboxes by mesh, and the changes that were not told yet."""

    def __init__(self) -> None:
        self._open: dict[str, dict[Mailbox, None]] = {}
        self._told: dict[str, set[str]] = {}
        self._changed: dict[str, dict[str, None]] = {}

    def online(self, mesh: str) -> Collection[str]:
        """Return the nodes that have an open mailbox in a mesh."""
        return {mailbox.node for mailbox in self._open.get(mesh, ())}

    def add(self, mailbox: Mailbox, *, is_first: bool) -> None:
        """Take an open mailbox in."""
        self._open.setdefault(mailbox.mesh, {})[mailbox] = None
        if is_first:
            self._note(mailbox)

    def remove(self, mailbox: Mailbox, *, is_last: bool) -> None:
        """Forget a mailbox."""
        boxes = self._open[mailbox.mesh]
        del boxes[mailbox]
        if not boxes:
            del self._open[mailbox.mesh]
        if is_last:
            self._note(mailbox)

    def _note(self, mailbox: Mailbox) -> None:
        changed = self._changed.setdefault(mailbox.mesh, {})
        if not changed:
            asyncio.get_running_loop().call_later(_GATHER_S, self._tell, mailbox.mesh)
        changed[mailbox.node] = None

    def _tell(self, mesh: str) -> None:
        online, told = self.online(mesh), self._told.setdefault(mesh, set())
        changed = [node for node in self._changed.pop(mesh, {}) if (node in online) != (node in told)]
        told.difference_update(changed)
        told.update(node for node in changed if node in online)
        if not told:
            del self._told[mesh]
        if not changed:
            return
        news = {node: command_text("PRESENCE", mesh, node, _word(node in online)) for node in changed}
        shared = _frame(list(news.values()))
        for mailbox in [each for each in self._open.get(mesh, ()) if each.is_introduced]:
            if mailbox.node not in news:
                mailbox.peer.tell(shared)
            elif len(news) > 1:
                mailbox.peer.tell(_frame([text for node, text in news.items() if node != mailbox.node]))


def _frame(commands: list[bytes]) -> bytes:
    return text_frame(list_text(commands))


def _word(is_online: bool) -> str:
    return "online" if is_online else "offline"
