"""A relay server: opens its parts in order, closes them in reverse order, and connects the metrics to their sources.

Start: the data directory and its lock, the relay's key, the engine, then the listening socket, so a client that can
connect finds everything ready. Stop: the socket first, then open connections and running requests, then the engine,
which commits everything it has accepted; the lock last.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from aiohttp import WSCloseCode

from posthouse.files import private_dir
from posthouse.http.caller_address import AddressRule
from posthouse.http.guard import Guard
from posthouse.http.outbound import OutboundAccount
from posthouse.http.server import HttpServer, listen_tcp
from posthouse.keys import NodeKey, keyfile
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import DAY_S, KNOWN_IDS_DAYS, SECOND_NS, WAIT_QUEUE_MAX
from posthouse.model.node import DEFAULT_MESH
from posthouse.model.rate import Rate
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.auth import open_challenges, open_tokens, peer_tokens
from posthouse.relay.context import RelayContext, read_metrics_token
from posthouse.relay.engine import (
    EPHEMERAL_RATE,
    EVENT_RATE,
    ClusterSettings,
    EngineSettings,
    RelayEngine,
    server_state,
)
from posthouse.relay.gauges import watch_metrics
from posthouse.relay.http.api_server import listen_for_metrics, make_http_server
from posthouse.relay.http.peer_routes import PEER_ROUTES
from posthouse.relay.listen import (
    ListenAddress,
    Protection,
    check_listen,
    invite_address,
    may_open_main,
    site_of,
    tls_context,
)
from posthouse.relay.live import Live
from posthouse.relay.messages.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.metrics import Meters
from posthouse.relay.openapi import ROUTES
from posthouse.relay.pinch.pinch_settings import NO_ORIGINS, PINCH_PATHS, PinchSettings
from posthouse.relay.replication.followers import FollowSettings
from posthouse.relay.replication.mirroring import MirrorRights
from posthouse.relay.store.high_water import FILE_NAME as MARK_NAME
from posthouse.relay.store.high_water import (
    MarkFile,
    refuse_missing,
    refuse_moved,
    refuse_old_timeline,
    refuse_rolled_back,
)
from posthouse.relay.store.sqlite.recording import MAX_BYTES as FOLLOW_MAX_BYTES
from posthouse.relay.store.sqlite.store import COPY_NAME, FILE_NAME, find_moved, stored_extent
from posthouse.relay.webhooks.sending import PUBLIC_ONLY, SendingSettings
from posthouse.relay.wire.edge_limits import DEFAULT_LIMITS, EdgeLimits
from posthouse.relay.wire.websocket import STOPPING, WebSocketConnection, keep_alive
from posthouse.sqlite.connection import create_private
from posthouse.sqlite.store_lock import StoreLock, refuse_half_restored
from posthouse.storage.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS
from posthouse.tracing import Tracer, open_tracer

if TYPE_CHECKING:
    from posthouse.relay.pinch.endpoint import PinchEndpoint

log = structlog.get_logger(__name__)
GOING_AWAY = 1001
KEY_NAME = "key.json"
_LOCK_PATIENCE_S = 1.0  # much longer than the instant for which `relay status` holds the lock
_LOCK_RETRY_S = 0.02
_BEHIND_CHECK_S = 0.25
NO_PROTECTION = Protection()


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one relay process."""

    listen: ListenAddress
    data_dir: Path
    #: begin an empty store in place of a lost one
    is_new: bool = False
    #: URL of a PostgreSQL database; None: a SQLite file in the data directory
    store: str | None = None
    #: URL under which the other relays of the database reach this one; None: it is alone
    advertise: str | None = None
    #: file of the high-water mark; None: next to the store
    high_water: Path | None = None
    protection: Protection = NO_PROTECTION
    admins: tuple[str, ...] = ()
    event_rate: Rate = EVENT_RATE
    ephemeral_rate: Rate = EPHEMERAL_RATE
    limits: EdgeLimits = DEFAULT_LIMITS
    addresses: AddressRule = field(default_factory=AddressRule)
    deliveries: DeliverySettings = DEFAULT_SETTINGS
    #: how long ids of removed events stay known
    known_ids_days: int = KNOWN_IDS_DAYS
    #: clients that may wait for one lock
    wait_queue_max: int = WAIT_QUEUE_MAX
    #: units of work, and their bytes, that may wait for the store's writer
    writer_max_items: int = MAX_WAITING_ITEMS
    writer_max_bytes: int = MAX_WAITING_BYTES
    #: which nodes may follow
    follow: FollowSettings = field(default_factory=FollowSettings)
    #: bytes of changes that are kept for followers
    follow_max_bytes: int = FOLLOW_MAX_BYTES
    #: which nodes may mirror which meshes
    mirrors: MirrorRights = field(default_factory=MirrorRights)
    #: how webhooks are sent
    sending: SendingSettings = PUBLIC_ONLY
    webhooks_per_mesh: int = 50
    #: None: the relay does not speak Pinch
    pinch: PinchSettings | None = None
    #: where metrics are served without a token; a path is a Unix socket
    metrics_listen: ListenAddress | Path | None = None
    metrics_token_file: Path | None = None
    #: collector of traces; None: events are not traced
    otlp_url: str | None = None
    clock: Clock = field(default_factory=system_clock)


class RelayServer:
    """A relay that listens."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.context: RelayContext
        self.key: NodeKey
        #: None: the relay does not speak Pinch
        self.pinch: PinchEndpoint | None = None
        #: the address it listens on; port 0 of the settings has become a real port
        self.address = settings.listen
        #: where it serves metrics without a token
        self.metrics_at: ListenAddress | Path | None = None
        self._tls: ssl.SSLContext | None = None
        self._http: HttpServer
        self._opened = AsyncExitStack()

    async def start(self) -> None:
        """Open everything; if a part fails, close the others and raise."""
        check_listen(self.settings.listen, self.settings.protection)
        self._tls = tls_context(self.settings.protection)
        if self.settings.metrics_token_file is not None:
            read_metrics_token(self.settings.metrics_token_file)
        try:
            await self._open()
        except BaseException:
            await self._opened.aclose()
            raise
        log.info("relay_started", listen=str(self.address), relay=self.key.node)
        self._log_open_doors()

    def _log_open_doors(self) -> None:
        """Log which meshes are open without an invite, so that none is open by accident."""
        for mesh in self.context.engine.meshes.all():
            name = mesh.row.mesh
            if mesh.row.is_open:
                keys = "local key" if name == DEFAULT_MESH else "key that authenticates"
                log.warning("mesh_open", mesh=name, reason=f"mesh {name} is open to every {keys}")
        for origin in self.settings.protection.origins:
            log.info("origin_allowed", origin=str(origin))
        if self.metrics_at is not None:
            log.info("metrics_open", listen=str(self.metrics_at), reason="metrics are served there without a token")
        if not self.settings.addresses.is_counted:
            reason = "all clients share the address of the proxy; relay.trusted_proxies tells them apart"
            log.warning("address_limits_off", reason=reason)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of new connections."""
        return self._tls

    def apply(self, settings: ServerSettings) -> None:
        """Apply the settings that a running relay can change; the others keep their values."""
        protection = replace(self.settings.protection, origins=settings.protection.origins)
        self.settings = replace(
            self.settings,
            protection=protection,
            event_rate=settings.event_rate,
            ephemeral_rate=settings.ephemeral_rate,
        )
        self.context.engine.followers.settings = settings.follow
        self.context.engine.mirroring.rights = settings.mirrors
        self.context.engine.authorizer.set_rates(settings.event_rate, settings.ephemeral_rate)
        self._http.guard = self._guard()

    async def stop(self) -> None:
        """Stop gracefully: accepted events are committed, and answered where the client still reads."""
        self.context.is_stopping = True
        await self._opened.aclose()
        log.info("relay_stopped", relay=self.key.node)

    async def _open(self) -> None:
        settings = self.settings
        data_dir = private_dir(settings.data_dir)
        lock = await _lock_directory(data_dir)
        self._opened.callback(lock.close)
        mark_file = MarkFile(settings.high_water or data_dir / MARK_NAME)
        has_new_key = not (data_dir / KEY_NAME).exists()
        check = check_store_files if settings.store is None else partial(check_store_server, settings.store)
        await asyncio.to_thread(check, data_dir, mark_file, is_new=settings.is_new)
        self.key = keyfile.load_or_create(data_dir / KEY_NAME)
        engine_settings = self._engine_settings(data_dir, mark_file, has_new_key=has_new_key)
        tracer = self._open_tracer()
        engine = await RelayEngine.start(engine_settings, settings.clock)
        self._opened.push_async_callback(engine.close)
        if tracer is not None:
            engine.trace_with(tracer)
        head = (await engine.store.extent()).head
        self.context = _make_context(engine, self.key, settings, head)
        self._opened.callback(engine.listen(self.context.live.publish))
        self._opened.callback(engine.meshes.watch_rights(self.context.live.note_rights_changed))
        checks = keep_alive(self.context.connections, settings.limits.ping_s, settings.limits.pong_s)
        task = asyncio.get_running_loop().create_task(checks, name="keep streams alive")
        self._opened.push_async_callback(_end, task)
        if settings.advertise is not None:
            for work in (
                keep_alive(self.context.peers, settings.limits.ping_s, settings.limits.pong_s),
                _end_streams_when_behind(self.context),
            ):
                self._opened.push_async_callback(_end, asyncio.get_running_loop().create_task(work))
        if settings.pinch is not None:
            from posthouse.relay.pinch.endpoint import open_pinch  # needs the extra `pinch`

            self.pinch = open_pinch(self.context, settings.pinch)
            self._opened.push_async_callback(self.pinch.close)
        await self._listen()

    def _open_tracer(self) -> Tracer | None:
        if self.settings.otlp_url is None:
            return None
        tracer = open_tracer(self.settings.otlp_url, "posthouse-relay", clock=self.settings.clock)
        self._opened.push_async_callback(asyncio.to_thread, tracer.close)
        return tracer

    async def _listen(self) -> None:
        settings = self.settings
        pinch = self.pinch
        routes = ROUTES if pinch is None else (*ROUTES, *pinch.routes())
        if settings.advertise is not None:
            routes = (*routes, *PEER_ROUTES)
        server = self._http = make_http_server(self.context, routes, self._guard())
        watch_metrics(self.context, server)
        if pinch is not None:
            self.context.meters.watch("posthouse_relay_pinch_connections", lambda: pinch.logged_in)
        listening, port = await listen_tcp(server, settings.listen.host, settings.listen.port, tls=self._tls)
        self._opened.push_async_callback(self._end_connections, server)
        self._opened.callback(listening.close)
        self.address = ListenAddress(settings.listen.host, port)
        self.context.address = invite_address(self.address, settings.protection)
        if settings.metrics_listen is not None:
            metrics = await listen_for_metrics(self.context, settings.metrics_listen)
            self._opened.push_async_callback(metrics.close)
            self.metrics_at = metrics.where

    def _guard(self) -> Guard:
        settings = self.settings
        origins = NO_ORIGINS if settings.pinch is None else settings.pinch.origins
        return Guard(
            site_of(settings.listen, settings.protection),
            allows_on_path=lambda path, origin: path in PINCH_PATHS and origins.allow(origin),
        )

    async def _end_connections(self, server: HttpServer) -> None:
        self.context.engine.locks.close()
        self.context.engine.followers.stop_waiting()
        self.context.engine.mirroring.stop_waiting()
        connections: list[WebSocketConnection] = [*self.context.connections, *self.context.peers]
        if self.pinch is not None:
            self.pinch.pinch.is_stopping = True
            connections += self.pinch.connections
        for connection in connections:
            connection.end(GOING_AWAY, STOPPING)
        for stream in list(self.context.event_streams):
            stream.end(error(STOPPING))
        # only now stop the HTTP library: it would not read the peers' half of the closing handshake
        await asyncio.gather(*(connection.ended.wait() for connection in connections))
        server.pre_shutdown()
        await server.shutdown(self.settings.limits.stop_s)

    def _peer_token(self) -> str:
        return peer_tokens(self.key, self.settings.clock).issue(self.key.node).text

    def _engine_settings(self, data_dir: Path, mark_file: MarkFile, *, has_new_key: bool) -> EngineSettings:
        settings = self.settings
        return EngineSettings(
            data_dir=data_dir,
            relay=self.key.node,
            has_new_key=has_new_key,
            mark_file=mark_file,
            is_main_open=may_open_main(settings.listen, settings.protection),
            admins=settings.admins,
            event_rate=settings.event_rate,
            ephemeral_rate=settings.ephemeral_rate,
            deliveries=settings.deliveries,
            known_ids_ns=settings.known_ids_days * DAY_S * SECOND_NS,
            wait_queue_max=settings.wait_queue_max,
            store=settings.store,
            cluster=None if settings.advertise is None else ClusterSettings(settings.advertise, self._peer_token),
            writer_max_items=settings.writer_max_items,
            writer_max_bytes=settings.writer_max_bytes,
            follow=settings.follow,
            follow_max_bytes=settings.follow_max_bytes,
            mirrors=settings.mirrors,
            sending=settings.sending,
            webhooks_per_mesh=settings.webhooks_per_mesh,
            has_pinch=settings.pinch is not None,
        )


async def _lock_directory(data_dir: Path) -> StoreLock:
    """Take the lock of the relay's directory; `relay status` holds it for an instant to see if a relay has it."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _LOCK_PATIENCE_S
    while True:
        try:
            return StoreLock(data_dir / "relay", exclusive=True)
        except PosthouseError as failure:
            if failure.code != "store_in_use" or loop.time() >= until_s:
                raise
        await asyncio.sleep(_LOCK_RETRY_S)


def check_store_files(data_dir: Path, mark_file: MarkFile, *, is_new: bool) -> None:
    """Refuse to start on a lost or rolled-back store or without its key; create the file of a new store before the key.

    So a key without a store always means that the store was lost, and a store with records that the key was.
    """
    path, copy = data_dir / FILE_NAME, data_dir / COPY_NAME
    if copy.exists():
        raise error("relay_follows", path=str(copy))
    refuse_half_restored(path)
    extent = stored_extent(path)
    refuse_moved(find_moved(path), path)
    if is_new:
        if extent is not None:
            raise error("store_exists", path=str(path))
        mark_file.give_up()
    else:
        mark = mark_file.read()
        refuse_missing(path, data_dir / KEY_NAME, mark)
        if path.exists():
            refuse_rolled_back(mark, extent, path)
        key = data_dir / KEY_NAME
        if extent is not None and not key.exists():
            raise error("relay_key_missing", key=str(key), path=str(path))
    create_private(path)


def check_store_server(url: str, data_dir: Path, mark_file: MarkFile, *, is_new: bool) -> None:
    """Refuse to start on a lost or rolled-back database, or on a store without its key.

    A key without a store is no loss here: all relays of a store get the same key before the first of them starts.
    """
    state = server_state(url)
    extent = state.extent
    refuse_moved(state.moved, shown_url(url))
    if is_new:
        if extent is not None:
            raise error("store_exists", path=shown_url(url))
        mark_file.give_up()
        return
    mark = mark_file.read()
    refuse_old_timeline(None if mark is None else mark.server, state.server, shown_url(url))
    if not state.is_elsewhere:  # a store on another server begins a new epoch, if it has lost something
        refuse_rolled_back(mark, extent, shown_url(url))
    key = data_dir / KEY_NAME
    if extent is not None and not key.exists():
        raise error("relay_key_missing", key=str(key), path=shown_url(url))


def _make_context(engine: RelayEngine, key: NodeKey, settings: ServerSettings, head: int) -> RelayContext:
    clock = settings.clock
    return RelayContext(
        engine=engine,
        key=key,
        clock=clock,
        limits=settings.limits,
        live=Live(engine.may_read, head, engine.meshes.readable),
        challenges=open_challenges(clock, key, engine.store.shared),
        stream_challenges=open_challenges(clock, key, None),
        tokens=open_tokens(clock, key),
        meters=Meters(),
        outbound=OutboundAccount(settings.limits.outbound_bytes),
        metrics_token_file=settings.metrics_token_file,
        addresses=settings.addresses,
    )


async def _end_streams_when_behind(context: RelayContext) -> None:
    """End all streams while this relay cannot follow the others, so that their clients continue at another relay."""
    while True:
        await asyncio.sleep(_BEHIND_CHECK_S)
        try:
            context.engine.require_current()
        except PosthouseError as failure:
            for connection in list(context.connections):
                connection.end(WSCloseCode.TRY_AGAIN_LATER, failure.code)
            for stream in list(context.event_streams):
                stream.end(failure)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
