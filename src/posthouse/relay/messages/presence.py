"""Presence: the roster of a mesh and the nodes that are online, sent to all open reader sessions of the mesh.

Changes that happen together are sent as one shared frame. A node that leaves and comes back within a moment was
never offline for its mesh.
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

MAX_PROFILES = 10_000  # read for one roster: as many as a mesh lists members
_event = msgspec.json.Decoder(Event).decode
_profile = msgspec.json.Decoder(dict[str, Any]).decode


def statuses(profiles: Iterable[bytes]) -> dict[str, str]:
    """Return the status in each profile that has one, by node; a malformed profile has none."""
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
    """Return the members by name, then the other nodes that are online."""
    listed = sorted(mesh.members.values(), key=lambda member: member.name)
    entries = [_entry(each.node, each.name, each.role.value, online, status) for each in listed]
    others = sorted(node for node in online if node not in mesh.members)
    return entries + [_entry(node, None, mesh.role(node), online, status) for node in others]


def _entry(
    node: str, name: str | None, role: str | None, online: Collection[str], status: dict[str, str]
) -> dict[str, Any]:
    return {"node": node, "name": name, "role": role, "online": node in online, "status": status.get(node)}


_GATHER_S = 0.02  # changes within this time share a frame


class PresenceTracker:
    """Open sessions by mesh, and the changes that were not announced yet."""

    def __init__(self) -> None:
        self._open: dict[str, dict[ReaderSession, None]] = {}
        #: mesh -> nodes that were announced as online
        self._announced: dict[str, set[str]] = {}
        self._changed: dict[str, dict[str, None]] = {}

    def online(self, mesh: str) -> Collection[str]:
        """Return the nodes that have an open session in a mesh."""
        return {session.node for session in self._open.get(mesh, ())}

    def sessions(self, mesh: str) -> list[ReaderSession]:
        """Return the open sessions of a mesh."""
        return list(self._open.get(mesh, ()))

    def add(self, session: ReaderSession, *, is_first: bool) -> None:
        """Add an open session."""
        self._open.setdefault(session.mesh, {})[session] = None
        if is_first:
            self._note(session)

    def remove(self, session: ReaderSession, *, is_last: bool) -> None:
        """Remove a session."""
        sessions = self._open[session.mesh]
        del sessions[session]
        if not sessions:
            del self._open[session.mesh]
        if is_last:
            self._note(session)

    def _note(self, session: ReaderSession) -> None:
        changed = self._changed.setdefault(session.mesh, {})
        if not changed:
            asyncio.get_running_loop().call_later(_GATHER_S, self._announce, session.mesh)
        changed[session.node] = None

    def _announce(self, mesh: str) -> None:
        online, announced = self.online(mesh), self._announced.setdefault(mesh, set())
        changed = [node for node in self._changed.pop(mesh, {}) if (node in online) != (node in announced)]
        announced.difference_update(changed)
        announced.update(node for node in changed if node in online)
        if not announced:
            del self._announced[mesh]
        if not changed:
            return
        commands = {node: command_text("PRESENCE", mesh, node, _word(node in online)) for node in changed}
        shared = _frame(list(commands.values()))
        for session in [each for each in self._open.get(mesh, ()) if each.has_roster]:
            if session.node not in commands:
                session.peer.send_frame(shared)
            elif len(commands) > 1:
                session.peer.send_frame(_frame([text for node, text in commands.items() if node != session.node]))


def _frame(commands: list[bytes]) -> bytes:
    return text_frame(list_text(commands))


def _word(is_online: bool) -> str:
    return "online" if is_online else "offline"
