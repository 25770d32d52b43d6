"""The parts of a running daemon that local requests use, and the call that a local route gets.

The daemon assembles one context after it has opened its stores; routes reach everything through it and never hold the
daemon itself. A waiting request always ends: when its event is set, when it times out, or when the daemon stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from posthouse.client.daemon import DaemonAddress
from posthouse.client.daemon.locate import MESH_HEADER
from posthouse.daemon.agents.marks import Marks
from posthouse.daemon.agents.pauses import Pauses
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.agents.repo_locks import RepoLocks
from posthouse.daemon.agents.reservations import Reservations
from posthouse.daemon.event_hub import EventHub
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.meshes import MeshTable
from posthouse.daemon.metrics import Meters
from posthouse.daemon.settings import DaemonSettings
from posthouse.daemon.wake.sessions import find_program
from posthouse.daemon.wake.user_hooks import ScopedTokens, UserHooks
from posthouse.daemon.wake.waker import Waker
from posthouse.http.call import Call, T, WaitLimit, read_arguments
from posthouse.http.guard import bearer_token
from posthouse.mcp.server import McpServer
from posthouse.model.address import AGENT_HEADER, DEFAULT_INBOX
from posthouse.model.clock import Clock
from posthouse.model.errors import error

#: query parameters that every route accepts
_MESH_PARAMETER, _AGENT_PARAMETER = "mesh", "agent"


@dataclass(slots=True)
class DaemonContext:
    """The parts of the daemon that a request may use."""

    settings: DaemonSettings
    clock: Clock
    meshes: MeshTable
    agents: AgentRegistry
    marks: Marks
    pauses: Pauses
    reservations: Reservations
    repo_locks: RepoLocks
    waker: Waker
    tokens: ScopedTokens
    user_hooks: UserHooks
    events: EventHub
    meters: Meters
    #: boot time at which the daemon started
    started_ns: int
    is_stopping: bool = False
    #: requests that wait for a message or a lock
    waiters: WaitLimit = field(init=False)
    #: event streams
    streams: WaitLimit = field(init=False)
    mcp: McpServer = field(init=False)
    _waiting: set[asyncio.Event] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.settings.limits
        self.waiters = WaitLimit(limits.sleepers, "daemon_busy")
        self.streams = WaitLimit(limits.streams, "too_many_streams")
        # its tools use the local API, like every other client
        address = DaemonAddress(self.settings.directory)
        self.mcp = McpServer(address, self.settings.tool_wait_max_s, _program_pid, self.agents.present_name)

    async def wait_for(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set, the time has passed, or the daemon stops."""
        if self.is_stopping:
            return
        self._waiting.add(event)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            self._waiting.discard(event)

    def stop(self) -> None:
        """Refuse new requests and wake the waiting ones."""
        self.is_stopping = True
        for event in self._waiting:
            event.set()


def _program_pid(pid: int) -> int:
    """Return the program that a process belongs to: hooks and pipes of one program must find the same one."""
    program = find_program(pid)
    return pid if program is None else program.pid


@dataclass(slots=True)
class LocalCall(Call[DaemonContext]):
    """A request to the daemon's local API.

    It may name its mesh in the header Posthouse-Mesh, in the parameter `mesh`, or in the body.
    """

    #: mesh that the body names
    _body_mesh: str | None = None
    _named_agent: str | None = None

    @property
    def id(self) -> str:
        """The id in the path of the route."""
        return self.params["id"]

    @property
    def mesh(self) -> MeshNode:
        """The mesh that the request names, else the default one."""
        return self.context.meshes.get(self.named_mesh)

    @property
    def meshes(self) -> list[MeshNode]:
        """The mesh that the request names, else all of them."""
        named = self.named_mesh
        return list(self.context.meshes) if named is None else [self.context.meshes.get(named)]

    @property
    def agent(self) -> str:
        """The agent that the request acts for, "" for the default inbox; raises agent_unknown."""
        return self.context.agents.check_known(self.named_agent)

    @property
    def active_agent(self) -> str:
        """The agent that the request acts for, as `agent`; raises agent_retired for one that accepts no mail."""
        agent = self.agent
        return self.context.agents.require_active(agent).name if agent else agent

    @property
    def named_agent(self) -> str:
        """The agent that the header or the query names, known or not; "" if neither names one."""
        if self._named_agent is None:
            self._named_agent = self._read_agent()
        return self._named_agent

    def _read_agent(self) -> str:
        named = {value for name, value in self.target.query if name == _AGENT_PARAMETER}
        if AGENT_HEADER in self.request.headers:
            named.add(self.request.headers[AGENT_HEADER].strip())
        if len(named) > 1:
            raise error("parameter_invalid", name=_AGENT_PARAMETER, reason="header and query name different agents")
        return named.pop() if named else DEFAULT_INBOX

    def arguments(self, type: type[T]) -> T:  # noqa: A002 - the domain's word
        """Return the query parameters as a struct, without mesh and agent, which every route accepts."""
        shared = (_MESH_PARAMETER, _AGENT_PARAMETER)
        return read_arguments([given for given in self.target.query if given[0] not in shared], type)

    async def body(self, type: type[T]) -> T:  # noqa: A002
        """Return the JSON body as a struct, and use the mesh that its field `mesh` names."""
        value = await Call.body(self, type)
        self._body_mesh = getattr(value, "mesh", None)
        return value

    @property
    def named_mesh(self) -> str | None:
        """The mesh that the header, the query or the body names, served or not; None if none of them names one."""
        named = {value for name, value in self.target.query if name == _MESH_PARAMETER}
        named |= {value for value in (self.request.headers.get(MESH_HEADER), self._body_mesh) if value is not None}
        if len(named) > 1:
            raise error("parameter_invalid", name=_MESH_PARAMETER, reason="the request names two meshes")
        return named.pop() if named else None


def check_token_scope(call: LocalCall) -> None:
    """Refuse a request with the token of a hook that is not for the hook's event."""
    token = bearer_token(call.request.headers.get("Authorization", ""))
    scope = None if token is None else call.context.tokens.find(token)
    if scope is not None:
        scope.check(call.route.method, call.route.path, call.params.get("id"))


def check_agent(call: LocalCall) -> None:
    """Refuse a request that names an unknown agent, unless its route ignores the header."""
    if AGENT_HEADER not in call.route.ignored_headers:
        _ = call.agent
