"""The daemon: the process of a home, which parts it opens in which order, and how it stops.

Start: the directory and its lock, then every mesh of the home, and the local API last, so that a client that can
connect finds everything ready. Stop: the reverse. None of this needs a reachable relay. A store or a task that fails
permanently ends the daemon with that failure after the stores were closed: a daemon that kept running without its
writer would only look healthy.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import structlog

from posthouse.daemon.agents.marks import Marks
from posthouse.daemon.agents.pauses import Pauses
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.agents.repo_locks import RepoLocks
from posthouse.daemon.agents.reservations import Reservations
from posthouse.daemon.context import DaemonContext
from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.event_hub import EventHub
from posthouse.daemon.housekeeping import keep_agents
from posthouse.daemon.ipc.local_server import LocalServer
from posthouse.daemon.ipc.openapi import ROUTES
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.meshes import MeshTable
from posthouse.daemon.metrics import Meters
from posthouse.daemon.settings import DaemonSettings
from posthouse.daemon.wake.announcements import Announcer
from posthouse.daemon.wake.user_hooks import ScopedTokens, Source, UserHooks
from posthouse.daemon.wake.waker import Waker
from posthouse.journal.store import exit_process
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.model.node import validate_served_mesh_name
from posthouse.tracing import Tracer, open_tracer

log = structlog.get_logger(__name__)
_FATAL_STOP_S = 10.0  # for closing the stores of a daemon that has failed


class Daemon:
    """One running daemon."""

    meshes: MeshTable
    agents: AgentRegistry
    pauses: Pauses
    reservations: Reservations
    repo_locks: RepoLocks
    waker: Waker
    tokens: ScopedTokens
    user_hooks: UserHooks
    context: DaemonContext
    server: LocalServer

    def __init__(self, settings: DaemonSettings) -> None:
        for mesh in settings.meshes:
            validate_served_mesh_name(mesh.mesh)
        self.settings = settings
        self.clock = settings.clock
        self.directory = DaemonDirectory(settings.directory)
        self.meters = Meters()
        self.events = EventHub(self.clock)
        self.events.on_event = self._on_event
        self._started_ns = self.clock.boot_ns()
        self._opened = AsyncExitStack()
        self._ended = asyncio.Event()
        self._failure: PosthouseError | None = None
        #: ends the process if the stores of a failed daemon cannot be closed
        self._last_resorts: list[threading.Timer] = []

    @property
    def port(self) -> int | None:
        """The port on loopback, if the daemon listens there."""
        return self.server.port

    async def start(self) -> None:
        """Open everything; if a part fails, close the others and raise."""
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        log.info("daemon_started", directory=str(self.directory.root))

    async def wait(self) -> None:
        """Wait until the daemon has to stop; raises the failure that ended it, if there is one."""
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def end(self, failure: PosthouseError | None = None) -> None:
        """Let `wait` return, or raise the failure; only the first call counts."""
        if not self._ended.is_set():
            self._failure = failure
            self._ended.set()

    async def stop(self) -> None:
        """Stop gracefully: accepted messages are committed, and rows in flight are sent again after the next start."""
        if self._failure is not None:
            log.error("daemon_failed", code=self._failure.code, reason=str(self._failure))
        self.context.stop()
        self._ended.set()
        self.events.publish("system", state="stopping")
        self.events.close()
        await self._close()
        log.info("daemon_stopped", directory=str(self.directory.root))

    async def _close(self) -> None:
        await self._opened.aclose()
        for last_resort in self._last_resorts:
            last_resort.cancel()

    # opening

    async def _open(self) -> None:
        if self.directory.restoring.exists():
            raise error("restore_unfinished", directory=str(self.directory.root))
        if self.settings.is_ephemeral and self.directory.is_persistent:
            raise error("identity_is_persistent", directory=str(self.directory.root))
        self.directory.prepare()
        self._opened.callback(self.directory.lock().close)
        self.directory.upgrade(self.settings.meshes[0].mesh)
        self.directory.clear()
        self._opened.callback(self.directory.clear)
        tracer = self._open_tracer()
        await self._open_stores(tracer)
        self.context = DaemonContext(
            self.settings,
            self.clock,
            self.meshes,
            self.agents,
            Marks(self.agents.store),
            self.pauses,
            self.reservations,
            self.repo_locks,
            self.waker,
            self.tokens,
            self.user_hooks,
            self.events,
            self.meters,
            self._started_ns,
        )
        self.server = LocalServer(self.context, self.directory, ROUTES)
        await self.server.start()
        self._opened.push_async_callback(self.server.close)
        self.user_hooks.url = None if self.port is None else f"http://127.0.0.1:{self.port}"
        self.directory.write_pid()
        if self.settings.ttl_s is not None:
            timer = asyncio.get_running_loop().call_later(self.settings.ttl_s, self.end)
            self._opened.callback(timer.cancel)

    def _open_tracer(self) -> Tracer | None:
        if self.settings.otlp_url is None:
            return None
        settings = self.settings
        tracer = open_tracer(settings.otlp_url or "", "posthouse-daemon", ratio=settings.trace_ratio, clock=self.clock)
        self._opened.push_async_callback(asyncio.to_thread, tracer.close)
        return tracer

    async def _open_stores(self, tracer: Tracer | None) -> None:
        end_with = self._store_failure_handler()
        self.agents = AgentRegistry(self.directory.agents, self.clock, on_fatal=end_with)
        self._opened.callback(self.agents.close)
        self.pauses = Pauses(self.agents.store, self.clock)
        self.agents.on_change.append(self.pauses.reload)
        self.agents.pause_of = self.pauses.find
        self.pauses.on_change.append(lambda _agents: self.agents.notify())
        self.reservations = Reservations(self.agents, self.clock)
        self.agents.on_change.append(self.reservations.reload)
        self.meshes = MeshTable(self.settings, self.directory, self.agents, self.events, self.meters, end_with)
        self.meshes.tracer = tracer
        announcer = Announcer(lambda: [node.inbox for node in self.meshes], self.meshes.name_of, self.pauses)
        self.waker = Waker(self.agents, self.pauses, announcer, self.meshes.address_of, self.clock)
        self.waker.follows_transcripts = self.settings.reports_usage
        self.meshes.on_new = lambda items: self.waker.on_mail(item.agent for item in items)
        await self._open_hooks()
        self.meshes.on_all_failed, self.meshes.on_task_end = self.end, self._on_task_end
        self._opened.push_async_callback(self.meshes.close)
        await self.meshes.open_all()
        self._opened.push_async_callback(self.waker.close)
        self.waker.commands.start()
        self.repo_locks = RepoLocks(lambda: self.meshes.get(None).uplink.client.locks, lambda: self.reservations.active)
        self.reservations.on_end = self.repo_locks.release_unused
        self._start_task(self.repo_locks.run())
        self._start_task(self.user_hooks.run())

    async def _open_hooks(self) -> None:
        store, retention = self.agents.store, self.settings.meshes[0].retention
        self.tokens = ScopedTokens(self.clock)
        self.user_hooks = UserHooks(self.settings.hooks, store, self._journals, self.meshes.name_of, self.tokens)
        await self.user_hooks.prepare()  # before the first uplink connects
        self.meshes.kept_after = self.user_hooks.kept_after
        self.meshes.on_open = lambda node: self.user_hooks.begin(_journals_of(node))
        self.meshes.on_uplink = lambda node, is_connected: self.user_hooks.note_uplink(
            node.mesh, node.settings.relay, is_connected=is_connected
        )
        self._opened.push_async_callback(self.user_hooks.close)
        self._start_task(keep_agents(self.agents, self.reservations, retention, self.user_hooks.kept_after))

    def _journals(self) -> list[Source]:
        home = Source("", "home", self.agents.store)
        return [home, *(source for node in self.meshes for source in _journals_of(node))]

    def _store_failure_handler(self) -> Callable[[Fatal], None]:
        """Return the callback that a store calls, on any thread, when it can no longer write.

        If the event loop does not close the stores in time, the process ends without it.
        """
        loop = asyncio.get_running_loop()

        def end_with(fatal: Fatal) -> None:
            last_resort = threading.Timer(_FATAL_STOP_S, exit_process, (fatal,))
            last_resort.daemon = True
            last_resort.start()
            self._last_resorts.append(last_resort)
            loop.call_soon_threadsafe(self.end, fatal)

        return end_with

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_task_end)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._opened.push_async_callback(cancel)

    def _on_event(self, event: str) -> None:
        self.meters.count("posthouse_daemon_events_total", event)
        self.user_hooks.notify()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        failure = task.exception()
        if isinstance(failure, PosthouseError):
            log.error("task_failed", code=failure.code, reason=str(failure))
            self.end(failure)
        elif failure is not None:
            log.error("task_failed", exc_info=failure)
            self.end(error("internal", reason=f"{type(failure).__name__}: {failure}"))


def _journals_of(node: MeshNode) -> list[Source]:
    return [Source(node.mesh, "inbox", node.inbox.store), Source(node.mesh, "outbox", node.outbox.store)]
