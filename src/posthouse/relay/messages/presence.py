"""Presence: the roster of a mesh, and who is online, sent to all open reader sessions of it.

Changes that happen together go out as one shared frame; a node that leaves and comes back within a moment was never
away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from posthouse.model.event import Event
from posthouse.relay.accept.authorize import Mesh
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.wire.frames import command_text, list_text, text_frame

MAX_PROFILES = 10_000  # looked at for one roster: as many as a mesh lists members
_event = msgspec.json.Decoder(Event).decode
_profile = msgspec.json.Decoder(dict[str, Any]).decode


def statuses(profiles: Iterable[bytes]) -> dict[str, str]:
    """Return the status in each profile that has one, by node; a profile that cannot be read has none."""
    found: dict[str, str] = {}
    for raw in profiles:
        event = _event(raw)
        try:
            status = _profile(event.content).get("status")
        except msgspec.DecodeError:
            continue
        if isinstance(status, str):
            found[event.pubkey] = status
    return found


def roster(mesh: Mesh, online: Collection[str], status: dict[str, str]) -> list[dict[str, Any]]:
    """Return the members by name, then whoever else is online."""
    listed = sorted(mesh.members.values(), key=lambda member: member.name)
    entries = [_entry(each.node, each.name, each.role.value, online, status) for each in listed]
    others = sorted(node for node in online if node not in mesh.members)
    return entries + [_entry(node, None, mesh.role(node), online, status) for node in others]


def _entry(
    node: str, name: str | None, role: str | None, online: Collection[str], status: dict[str, str]
) -> dict[str, Any]:
    return {"node": node, "name": name, "role": role, "online": node in online, "status": status.get(node)}


_GATHER_S = 0.02


class PresenceTracker:
    """Open mailboxes by mesh, and the changes that were not told yet."""

    def __init__(self) -> None:
        self._open: dict[str, dict[ReaderSession, None]] = {}
        self._told: dict[str, set[str]] = {}
        self._changed: dict[str, dict[str, None]] = {}

    def online(self, mesh: str) -> Collection[str]:
        """Return the nodes that have an open mailbox in a mesh."""
        return {mailbox.node for mailbox in self._open.get(mesh, ())}

    def add(self, mailbox: ReaderSession, *, is_first: bool) -> None:
        """Take an open mailbox in."""
        self._open.setdefault(mailbox.mesh, {})[mailbox] = None
        if is_first:
            self._note(mailbox)

    def remove(self, mailbox: ReaderSession, *, is_last: bool) -> None:
        """Forget a mailbox."""
        boxes = self._open[mailbox.mesh]
        del boxes[mailbox]
        if not boxes:
            del self._open[mailbox.mesh]
        if is_last:
            self._note(mailbox)

    def _note(self, mailbox: ReaderSession) -> None:
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
