"""A relay process: what it opens, in which order, and how it ends.

Start: the data directory and its lock, the relay's key, the core, then the listening socket; so whoever can
connect finds everything ready. Stop: the socket first, then streams and requests that run, then the core, which commits
what was taken in; the lock last.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from posthouse.files import private_dir
from posthouse.keys import NodeKey, keyfile
from posthouse.model.bucket import Rate
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import error
from posthouse.model.limits import EPHEMERAL_BURST, EPHEMERAL_RATE_PER_S, EVENT_BURST, EVENT_RATE_PER_S
from posthouse.relay.auth import Challenges, Tokens
from posthouse.relay.core import Core, CoreSettings
from posthouse.relay.deliver.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.edge import Edge
from posthouse.relay.http.protocol import Server
from posthouse.relay.http.router import Router
from posthouse.relay.http.serve import Service
from posthouse.relay.http.table import ROUTES
from posthouse.relay.limits import DEFAULT_LIMITS, EdgeLimits
from posthouse.relay.listen import Place, Protection, check_listen, is_loopback, tls_context
from posthouse.relay.live import Live
from posthouse.relay.metrics import Meters
from posthouse.relay.pinch.connection import PinchConnection
from posthouse.relay.pinch.routes import pinch_routes
from posthouse.relay.pinch.service import Pinch
from posthouse.relay.pinch.settings import PinchSettings
from posthouse.relay.stream.connection import Connection
from posthouse.relay.stream.keeper import keep_alive
from posthouse.relay.watch import watch
from posthouse.sqlite.presence import Presence

log = structlog.get_logger(__name__)
GOING_AWAY = 1001
EVENT_RATE = Rate(EVENT_RATE_PER_S, EVENT_BURST)
EPHEMERAL_RATE = Rate(EPHEMERAL_RATE_PER_S, EPHEMERAL_BURST)
NO_PROTECTION = Protection()
_BACKLOG = 1_024


@dataclass(frozen=True)
class ServerSettings:
    """What a relay process is told."""

    place: Place
    data_dir: Path
    protection: Protection = NO_PROTECTION
    admins: tuple[str, ...] = ()
    event_rate: Rate = EVENT_RATE
    ephemeral_rate: Rate = EPHEMERAL_RATE
    limits: EdgeLimits = DEFAULT_LIMITS
    deliveries: DeliverySettings = DEFAULT_SETTINGS
    #: None: it does not speak Pinch
    pinch: PinchSettings | None = None
    clock: Clock = field(default_factory=system_clock)


class RelayServer:
    """A relay that listens."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.edge: Edge
        self.key: NodeKey
        #: where it really listens: port 0 has become a port
        self.place = settings.place
        self._opened = AsyncExitStack()

    async def start(self) -> None:
        """Open everything, or raise why not, with nothing left open."""
        check_listen(self.settings.place, self.settings.protection)
        tls = tls_context(self.settings.protection)
        try:
            await self._open(tls)
        except BaseException:
            await self._opened.aclose()
            raise
        log.info("relay_started", listen=str(self.place), relay=self.key.node)

    async def stop(self) -> None:
        """End gracefully: what was accepted is committed and answered as far as clients listen."""
        self.edge.is_stopping = True
        await self._opened.aclose()
        log.info("relay_stopped", relay=self.key.node)

    async def _open(self, tls: ssl.SSLContext | None) -> None:
        settings = self.settings
        data_dir = private_dir(settings.data_dir)
        lock = Presence(data_dir / "relay", exclusive=True)
        self._opened.callback(lock.close)
        self.key = keyfile.load_or_create(data_dir / "key.json")
        core = await Core.start(self._core_settings(data_dir), settings.clock)
        self._opened.push_async_callback(core.close)
        head = (await core.store.extent()).head
        self.edge = _make_edge(core, self.key, settings, head)
        self._opened.callback(core.listen(self.edge.live.publish))
        keeper = asyncio.get_running_loop().create_task(keep_alive(self.edge))
        self._opened.push_async_callback(_end, keeper)
        if settings.pinch is not None:
            self.edge.pinch = Pinch(core, self.key, self.edge.meters, settings.pinch)
            self._opened.push_async_callback(self.edge.pinch.close)
        await self._listen(tls)

    async def _listen(self, tls: ssl.SSLContext | None) -> None:
        settings = self.settings
        pinch = self.edge.pinch
        service = Service(self.edge, Router(ROUTES if pinch is None else (*ROUTES, *pinch_routes(pinch))))
        server = Server(self.edge, service)
        watch(self.edge, server, service)
        try:
            listening = await asyncio.get_running_loop().create_server(
                server, settings.place.host, settings.place.port, ssl=tls, backlog=_BACKLOG
            )
        except OSError as failure:
            raise error(
                "listen_failed", listen=str(settings.place), reason=failure.strerror or str(failure)
            ) from failure
        self._opened.push_async_callback(self._hang_up, server)
        self._opened.callback(listening.close)
        port = listening.sockets[0].getsockname()[1]
        self.place = Place(settings.place.host, port)
        self.edge.address = str(self.place)

    async def _hang_up(self, server: Server) -> None:
        self.edge.core.locks.close()
        connections: list[Connection | PinchConnection] = list(self.edge.connections)
        if self.edge.pinch is not None:
            self.edge.pinch.is_stopping = True
            connections += self.edge.pinch.connections
        for connection in connections:
            connection.end(GOING_AWAY, "relay_stopping")
        # the library is told to stop only then: it would not read the peers' half of the closing handshake
        await asyncio.gather(*(connection.ended.wait() for connection in connections))
        server.pre_shutdown()
        await server.shutdown(self.settings.limits.stop_s)

    def _core_settings(self, data_dir: Path) -> CoreSettings:
        settings = self.settings
        return CoreSettings(
            data_dir=data_dir,
            relay=self.key.node,
            is_main_open=is_loopback(settings.place),
            admins=settings.admins,
            event_rate=settings.event_rate,
            ephemeral_rate=settings.ephemeral_rate,
            deliveries=settings.deliveries,
            has_pinch=settings.pinch is not None,
        )


def _make_edge(core: Core, key: NodeKey, settings: ServerSettings, head: int) -> Edge:
    clock = settings.clock
    return Edge(
        core=core,
        key=key,
        clock=clock,
        limits=settings.limits,
        live=Live(core.may_read, head),
        challenges=Challenges(clock),
        tokens=Tokens(clock),
        meters=Meters(),
    )


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
