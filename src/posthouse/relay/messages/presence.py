"""Presence: the roster of a mesh, the nodes and agents that are online, and profiles, for its open reader sessions.

Changes that happen together are sent as one shared frame. A node that reconnects within a moment is never shown as
offline. A node's sessions say which of its agents are online; that is never stored. A roster shows the agents of
profiles up to a bound; a reader fetches the profiles whose agents it does not show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event
from posthouse.model.limits import MIB
from posthouse.model.profile import AgentProfile, read_agents
from posthouse.relay.accept.mesh_registry import Mesh
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.wire.frames import command_text, list_text, text_frame

MAX_PROFILES = 10_000  # read for one roster: as many as a mesh lists members
ROSTER_AGENTS_BYTES = 4 * MIB  # of the profiles whose agents a roster shows: thousands of hosts with a few agents
_event = msgspec.json.Decoder(Event).decode
_profile = msgspec.json.Decoder(dict[str, Any]).decode


class ShownProfile(NamedTuple):
    """The part of a profile that members of a mesh see."""

    status: str | None = None
    #: None: it lists none, or the roster has no room for more
    agents: tuple[AgentProfile, ...] | None = None


_NO_PROFILE = ShownProfile()


def shown_profiles(profiles: Iterable[bytes]) -> dict[str, ShownProfile]:
    """Return the visible part of profiles, by node."""
    found: dict[str, ShownProfile] = {}
    room = ROSTER_AGENTS_BYTES
    for raw in profiles:
        event = _event(raw)
        shown = _shown(event)
        if shown.agents is not None:
            room -= len(raw)
        found[event.pubkey] = shown if room >= 0 else shown._replace(agents=None)
    return found


def _shown(event: Event) -> ShownProfile:
    """Return the visible part of a profile; empty for a malformed one, accepted before lists were checked."""
    try:
        status = _profile(event.content).get("status")
        return ShownProfile(status if isinstance(status, str) else None, read_agents(event.content))
    except (msgspec.DecodeError, PosthouseError):
        return _NO_PROFILE


#: node -> its agents that are online
Online = Mapping[str, tuple[str, ...]]


def roster(mesh: Mesh, online: Online, profiles: Mapping[str, ShownProfile]) -> list[dict[str, Any]]:
    """Return the members by name, then the other nodes that are online."""
    listed = sorted(mesh.members.values(), key=lambda member: member.name)
    entries = [_entry(each.node, each.name, each.role.value, online, profiles) for each in listed]
    others = sorted(node for node in online if node not in mesh.members)
    return entries + [_entry(node, None, mesh.role(node), online, profiles) for node in others]


def _entry(
    node: str, name: str | None, role: str | None, online: Online, profiles: Mapping[str, ShownProfile]
) -> dict[str, Any]:
    status, agents = profiles.get(node, _NO_PROFILE)
    entry: dict[str, Any] = {"node": node, "name": name, "role": role, "online": node in online, "status": status}
    if agents is not None:
        entry["agents"] = agents
    if online_agents := online.get(node):
        entry["online_agents"] = online_agents
    return entry


_GATHER_S = 0.02  # changes within this time share a frame
_GATHER_AGENTS_S = 0.25  # agents come and go with single turns of their programs, and each change goes to all members


class PresenceTracker:
    """Open sessions by mesh, and the changes that were not announced yet."""

    def __init__(self) -> None:
        self._open: dict[str, dict[ReaderSession, None]] = {}
        #: mesh -> nodes and agents that were announced as online
        self._announced: dict[str, dict[str, tuple[str, ...]]] = {}
        self._changed: dict[str, dict[str, None]] = {}
        #: other relay -> mesh -> node -> its agents that are online there
        self._elsewhere: dict[object, dict[str, dict[str, list[str]]]] = {}
        #: called with mesh, node and its agents here, None if it has no session here, when that may have changed
        self.on_change: Callable[[str, str, tuple[str, ...] | None], None] = lambda _mesh, _node, _agents: None

    def online(self, mesh: str) -> Online:
        """Return the nodes that have an open session in a mesh, here or at another relay, with their agents."""
        agents: dict[str, set[str]] = {}
        for session in self._open.get(mesh, ()):
            agents.setdefault(session.node, set()).update(session.agents)
        for meshes in self._elsewhere.values():
            for node, names in meshes.get(mesh, {}).items():
                agents.setdefault(node, set()).update(names)
        return {node: tuple(sorted(names)) for node, names in agents.items()}

    def own_online(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return the nodes that have an open session here, by mesh, with their agents."""
        return {mesh: {session.node: session.agents for session in sessions} for mesh, sessions in self._open.items()}

    def replace_elsewhere(self, relay: object, online: dict[str, dict[str, list[str]]]) -> None:
        """Replace the online nodes reported by another relay; `online` is empty when that relay is gone."""
        former = self._elsewhere.pop(relay, {})
        if online:
            self._elsewhere[relay] = online
        for mesh in former.keys() | online.keys():
            for node in former.get(mesh, {}).keys() | online.get(mesh, {}).keys():
                self._note_change(mesh, node)

    def note_elsewhere(self, relay: object, mesh: str, node: str, agents: list[str] | None) -> None:
        """Note that a node is online at another relay with these agents, or no longer online."""
        nodes = self._elsewhere.setdefault(relay, {}).setdefault(mesh, {})
        if agents is None:
            nodes.pop(node, None)
        else:
            nodes[node] = agents
        self._note_change(mesh, node)

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

    def note_agents(self, session: ReaderSession) -> None:
        """Announce the agents of a session that are online, unless they are the same as before."""
        self._note(session, _GATHER_AGENTS_S)

    def announce_profile(self, event: Event) -> None:
        """Send a profile that has just replaced another to the mesh."""
        status, agents = _shown(event)
        profile = {"node": event.pubkey, "status": status, "agents": agents}
        frame = _frame([command_text("PROFILE", event.mesh, profile)])
        for session in self._open.get(event.mesh, ()):
            if session.has_roster and session.node != event.pubkey:
                session.peer.send_frame(frame)

    def _note(self, session: ReaderSession, gather_s: float = _GATHER_S) -> None:
        mine = [each.agents for each in self._open.get(session.mesh, ()) if each.node == session.node]
        agents = tuple(dict.fromkeys([name for names in mine for name in names])) if mine else None
        self.on_change(session.mesh, session.node, agents)
        self._note_change(session.mesh, session.node, gather_s)

    def _note_change(self, mesh: str, node: str, gather_s: float = _GATHER_S) -> None:
        changed = self._changed.setdefault(mesh, {})
        if not changed:
            asyncio.get_running_loop().call_later(gather_s, self._announce, mesh)
        changed[node] = None

    def _announce(self, mesh: str) -> None:
        online, announced = self.online(mesh), self._announced.setdefault(mesh, {})
        changed = [node for node in self._changed.pop(mesh, {}) if online.get(node) != announced.get(node)]
        for node in changed:
            announced.pop(node, None)
        announced.update({node: online[node] for node in changed if node in online})
        if not announced:
            del self._announced[mesh]
        if not changed:
            return
        commands = {node: _presence(mesh, node, online.get(node)) for node in changed}
        shared = _frame(list(commands.values()))
        for session in [each for each in self._open.get(mesh, ()) if each.has_roster]:
            if session.node not in commands:
                session.peer.send_frame(shared)
            elif len(commands) > 1:
                session.peer.send_frame(_frame([text for node, text in commands.items() if node != session.node]))


def _frame(commands: list[bytes]) -> bytes:
    return text_frame(list_text(commands))


def _presence(mesh: str, node: str, agents: tuple[str, ...] | None) -> bytes:
    """Return the command of a node that is online with these agents, or offline."""
    if agents is None:
        return command_text("PRESENCE", mesh, node, "offline")
    return command_text("PRESENCE", mesh, node, "online", *([agents] if agents else []))
