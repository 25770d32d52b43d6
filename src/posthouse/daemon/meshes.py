"""The meshes of a running daemon: the table of them, the default of requests, and what happens when one fails.

A request that names no mesh means the mesh that the user has chosen, else `main`, else the first. A mesh that cannot be
opened, or whose uplink ends permanently, is listed as failed while the others continue; the daemon ends with its
failure only if no mesh is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog

from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.event_hub import EventHub
from posthouse.daemon.housekeeping import KeptAfter, keep_nothing
from posthouse.daemon.identity import rotate_key
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.mesh_node import MeshNode, ignore_open
from posthouse.daemon.metrics import Meters
from posthouse.daemon.settings import DaemonSettings, MeshSettings
from posthouse.model.address import Address
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.model.node import DEFAULT_MESH, validate_served_mesh_name
from posthouse.model.rotation import KeyChange
from posthouse.tracing import Tracer

log = structlog.get_logger(__name__)
#: another process has the files: then this one must not serve any mesh
_BLOCKING = frozenset({"daemon_running"})


class MeshTable:
    """The meshes of one daemon by name."""

    def __init__(
        self,
        settings: DaemonSettings,
        directory: DaemonDirectory,
        agents: AgentRegistry,
        events: EventHub,
        meters: Meters,
        on_fatal: Callable[[Fatal], None],
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._agents = agents
        self._events = events
        self._meters = meters
        self._on_fatal = on_fatal
        #: None: messages are not traced
        self.tracer: Tracer | None = None
        #: one rotation of a key at a time
        self._rotation = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        #: every mesh, also those that could not be opened
        self.nodes: dict[str, MeshNode] = {}
        #: callback(new messages of a commit) for every mesh
        self.on_new: Callable[[Sequence[InboxItem]], None] = lambda _items: None
        #: callback(node, is connected) when an uplink was connected or lost
        self.on_uplink: Callable[[MeshNode, bool], None] = lambda _node, _is_connected: None
        #: awaited with each node that opens, before it receives or sends anything
        self.on_open: Callable[[MeshNode], Awaitable[None]] = ignore_open
        #: returns the seq after which a journal must not be pruned, None if all of it may be
        self.kept_after: KeptAfter = keep_nothing
        #: callback(failure) once no mesh is left
        self.on_all_failed: Callable[[PosthouseError], None] = lambda _failure: None
        #: callback(task) when a task of a mesh ends that must not end
        self.on_task_end: Callable[[asyncio.Task[None]], None] = lambda _task: None

    # finding

    def __iter__(self) -> Iterator[MeshNode]:
        """Yield the meshes whose stores are open."""
        return (node for node in tuple(self.nodes.values()) if node.is_open)

    def get(self, mesh: str | None) -> MeshNode:
        """Return a mesh, by default the one of requests that name none; raises mesh_not_served or its failure."""
        node = self.nodes.get(self.default if mesh is None else mesh)
        if node is None:
            served = ", ".join(sorted(self.nodes)) or "none"
            raise error("mesh_not_served", mesh=mesh or self.default, served=served)
        if not node.is_open:
            raise node.failure or error("mesh_not_served", mesh=node.mesh, served="")
        return node

    @property
    def default(self) -> str:
        """The mesh of requests that name none."""
        chosen = self._settings.chosen_mesh()
        if chosen is not None and chosen in self.nodes:
            return chosen
        return DEFAULT_MESH if DEFAULT_MESH in self.nodes else next(iter(self.nodes), DEFAULT_MESH)

    def name_of(self, node: str) -> str | None:
        """Return the member name of a node in the first mesh that knows one."""
        return next((name for each in self if (name := each.roster.name_of(node)) is not None), None)

    def address_of(self, agent: str) -> str:
        """Return the address of an agent of this host, in the default mesh."""
        node = self.get(None)
        return str(Address(agent, node.roster.host_of(node.key.node)))

    def states(self) -> list[dict[str, Any]]:
        """Return one description of each mesh."""
        return [_state(node, is_default=node.mesh == self.default) for node in self.nodes.values()]

    # opening and closing

    async def open_all(self) -> None:
        """Open every mesh of the settings; raises the first failure if none can be opened."""
        for settings in self._settings.meshes:
            try:
                await self._open(settings)
            except PosthouseError as failure:
                if failure.code in _BLOCKING or len(self._settings.meshes) == 1:
                    raise
                log.error("mesh_not_opened", mesh=settings.mesh, code=failure.code, reason=str(failure))
        if not any(node.is_open for node in self.nodes.values()):
            raise next(node.failure for node in self.nodes.values() if node.failure is not None)

    async def add(self, mesh: str, relay: str | None) -> MeshNode:
        """Serve another mesh, retry one that has failed, or move one to another relay."""
        load = self._settings.load_mesh
        if load is None:
            raise error("mesh_not_served", mesh=mesh, served=", ".join(sorted(self.nodes)))
        settings = load(validate_served_mesh_name(mesh), relay)
        former = self.nodes.get(mesh)
        if former is not None:
            if former.is_open and former.failure is None and former.settings.relay == settings.relay:
                return former
            await former.close()
        return await self._open(settings)

    async def rotate_key(self, mesh: str | None) -> KeyChange:
        """Replace this host's key in a mesh with a new one, and connect with it."""
        node = self.nodes.get(self.default if mesh is None else mesh) or self.get(mesh)
        async with self._rotation:
            if self.nodes.get(node.mesh) is not node:  # another call was faster
                node = self.get(node.mesh)
            node.is_rotating = True
            try:
                change = await rotate_key(node.directory, node.uplink.make_client())
            except BaseException:
                node.is_rotating = False
                raise
            await node.close()
            await self._open(node.settings)
            return change

    def _resume_rotation(self, node: MeshNode) -> None:
        """Finish a rotation that a crash interrupted after the relay had accepted it."""
        if not node.is_rotating:
            task = asyncio.get_running_loop().create_task(self._finish_rotation(node))
            task.add_done_callback(self._tasks.discard)
            self._tasks.add(task)

    async def _finish_rotation(self, node: MeshNode) -> None:
        try:
            await self.rotate_key(node.mesh)
        except PosthouseError as failure:  # such as another successor, which is not ours
            node.fail(failure)

    async def remove(self, mesh: str) -> None:
        """Stop serving a mesh; its files stay."""
        node = self.nodes.pop(mesh, None)
        if node is not None:
            await node.close()

    async def close(self) -> None:
        """Close every mesh."""
        for node in reversed(tuple(self.nodes.values())):
            await node.close()

    async def _open(self, settings: MeshSettings) -> MeshNode:
        directory = self._directory.mesh(settings.mesh)
        if self.tracer is not None:
            settings = replace(settings, client=replace(settings.client, tracer=self.tracer))
        node = MeshNode(settings, directory, self._agents, self._events, self._meters, self._on_fatal)
        node.on_failed, node.on_task_end, node.on_new = self._on_failed, self.on_task_end, self.on_new
        node.on_uplink, node.kept_after, node.on_open = self.on_uplink, self.kept_after, self.on_open
        node.on_key_rotated = self._resume_rotation
        self.nodes[settings.mesh] = node
        await node.open()
        log.info("mesh_opened", mesh=node.mesh, node=node.key.node, relay=settings.relay)
        return node

    def _on_failed(self, failure: PosthouseError) -> None:
        if all(node.failure is not None for node in self.nodes.values()):
            self.on_all_failed(failure)


def _state(node: MeshNode, *, is_default: bool) -> dict[str, Any]:
    failure = node.failure
    is_up = node.is_open and node.uplink.is_up
    admitted = is_up and node.uplink.is_admitted
    refusal = node.uplink.refusal if node.is_open else None
    state = "failed" if failure is not None else "connected" if is_up else "connecting"
    failure = failure or refusal
    return {
        "mesh": node.mesh,
        "state": state,
        "admitted": admitted,
        "relay": node.settings.relay,
        "node": node.key.node if node.is_open else None,
        "member": node.roster.name_of(node.key.node) if node.is_open else None,
        "is_default": is_default,
        "error": None if failure is None else failure.code,
        "reason": None if failure is None else str(failure),
        "hint": None if failure is None else failure.hint,
    }
