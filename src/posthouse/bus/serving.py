"""Endpoints that this process has registered, serves, or stands by for.

A process serves an endpoint while it has registered it, has a subscription that its messages can reach, and has a row
in `servers`. Without a group one process serves an endpoint and other processes stand by; the processes of a group
serve it together. A process is dead if its lock in procs/ can be taken: its peers check five times per second, take
over and deliver its messages again; a process that is only stopped keeps them. The first server of an endpoint closes
its breaker.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from posthouse.bus.core import Core
from posthouse.bus.data_directory import is_alive
from posthouse.bus.endpoint_server import EndpointServer
from posthouse.bus.handlers import HandlerThreads, ServeMode, Subscriptions, group_conflict, is_reached
from posthouse.bus.redelivery import (
    Leftovers,
    find_ended,
    redeliver_all,
    release_dead_server,
    release_server,
    remove_leftovers,
)
from posthouse.bus.results import Endpoint
from posthouse.bus.running import Deadlines, RunGate
from posthouse.bus.settling import endpoint_fields
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.bus.watching import Watcher
from posthouse.log import get_log
from posthouse.model.breaker import BreakerState
from posthouse.model.errors import PosthouseError
from posthouse.model.subjects import is_pattern

log = get_log(__name__)
WATCH_S = 0.2  # finds a dead process well within a second
_CLOSE_GRACE_S = 1.0  # how long handlers may finish when the bus closes


class EndpointServers:
    """The serving side of one open Bus."""

    def __init__(self, core: Core, subscriptions: Subscriptions, watcher: Watcher) -> None:
        self._core = core
        self._subscriptions = subscriptions
        self._threads = HandlerThreads()
        self._deadlines = Deadlines(core.loop, core.context)
        self.gate = RunGate()
        self._watcher = watcher
        self._registered: dict[str, Endpoint] = {}
        self._servers: dict[int, EndpointServer] = {}
        self._joining: dict[int, _JoinEndpoint] = {}
        self._standby: dict[int, Endpoint] = {}
        self._watching: asyncio.Task[None] | None = None
        self._server_released = asyncio.Event()
        self._is_closed = False

    def find(self, number: int) -> EndpointServer | None:
        """Return the server of an endpoint if this process serves it."""
        return self._servers.get(number)

    async def on_registered(self, endpoint: Endpoint) -> None:
        """Serve the endpoint from now on if a subscription can receive its messages."""
        known = self._registered.get(endpoint.subject)
        if known is not None and known.number != endpoint.number:
            self.drop(known)
        self._registered[endpoint.subject] = endpoint
        await self._update_all([endpoint])

    async def on_subscriptions_changed(self, pattern: str) -> None:
        """Start and stop servers of the endpoints that the pattern concerns; raise if they are served otherwise."""
        registered = self._registered.values()
        await self._update_all([endpoint for endpoint in registered if is_reached(endpoint.subject, pattern)])

    async def _update_all(self, endpoints: list[Endpoint]) -> None:
        """Start servers; handlers run only after the caller continues, because it may not have its subscription yet."""
        joining = [joining for endpoint in endpoints if (joining := self._update(endpoint)) is not None]
        for join in joining:
            join.is_awaited = True
        self._core.ledger.commit_soon()
        try:
            for join in joining:
                await asyncio.shield(join.done)
        finally:
            for join in joining:
                join.start_server()
        for join in joining:
            if join.conflict is not None:
                raise join.conflict

    def drop(self, endpoint: Endpoint) -> None:
        """Stop serving an endpoint at once, because it is being unregistered; its messages stay."""
        if self._registered.get(endpoint.subject) is endpoint:
            del self._registered[endpoint.subject]
        self._standby.pop(endpoint.number, None)
        server = self._servers.get(endpoint.number)
        if server is not None:
            self._watcher.remove_mailbox(server.arrivals)
            server.stop()
            server.cancel()
            self._remove(server)

    async def drop_unregistered(self) -> None:
        """Drop endpoints that another process has unregistered."""
        known = list(self._registered.values())  # before the check: an endpoint that is added meanwhile is not in it
        registry = await self._core.ledger.run(lambda tx: tx.registry)
        for endpoint in known:
            if endpoint.number not in registry.by_number:
                self.drop(endpoint)

    def rescan(self) -> None:
        """Rescan all served mailboxes, and try again to serve those that could not be served."""
        for endpoint in list(self._registered.values()):
            if endpoint.number not in self._servers and endpoint.number not in self._standby:
                try:
                    self._update(endpoint)
                except PosthouseError as failure:
                    log.error("endpoint_not_served", subject=endpoint.subject, reason=str(failure))
        for server in list(self._servers.values()):
            server.arrivals.rescan()
            if server.mode.group:
                self._core.ledger.submit(_RemoveEnded(self._core, server.endpoint))

    def _update(self, endpoint: Endpoint) -> _JoinEndpoint | None:
        """Start, change or stop the server of an endpoint; return the operation that starts it."""
        mode = None if self._is_closed else self._subscriptions.serve_mode(endpoint.subject)
        if mode is None:
            self._stop(endpoint)
            return None
        server = self._servers.get(endpoint.number)
        if server is not None:
            server.mode = mode
            if is_pattern(endpoint.subject) and not server.is_stopped:
                server.arrivals.rescan()  # for messages that no handler has matched so far
            return None
        if endpoint.number in self._standby:
            return None
        return self._join(endpoint, mode)

    def _join(self, endpoint: Endpoint, mode: ServeMode) -> _JoinEndpoint:
        joining = self._joining.get(endpoint.number)
        if joining is None:
            joining = self._joining[endpoint.number] = _JoinEndpoint(self._core, self, endpoint, mode)
            self._core.ledger.submit(joining)
        return joining

    def on_joined(self, joined: _JoinEndpoint) -> None:
        """Start the server of an endpoint, or stand by for it."""
        endpoint = joined.endpoint
        self._joining.pop(endpoint.number, None)
        remove_leftovers(self._core, endpoint, joined.leftovers)
        if joined.conflict is not None:
            log.error("endpoint_not_served", subject=endpoint.subject, reason=str(joined.conflict))
        elif joined.is_server:
            joined.server = self._serve(endpoint, joined.mode)
            if not joined.is_awaited:
                joined.start_server()
        elif joined.has_to_wait:
            self._standby[endpoint.number] = endpoint
            self._watch_peers()

    def on_join_failed(self, joined: _JoinEndpoint) -> None:
        """Leave it to housekeeping to try again."""
        self._joining.pop(joined.endpoint.number, None)

    def _serve(self, endpoint: Endpoint, mode: ServeMode) -> EndpointServer | None:
        """Create the server of an endpoint; a damaged mailbox must not keep other endpoints from being served."""
        server = EndpointServer(
            self._core, endpoint, mode, self._subscriptions, self._threads, self._deadlines, self.gate, self.on_stopped
        )
        self._servers[endpoint.number] = server
        self._core.servers[endpoint.number] = server.arrivals
        try:
            self._core.directory.mailbox(endpoint.hash)
            self._watcher.add_mailbox(self._core.directory.path_of(endpoint.hash) / "new", server.arrivals)
        except (OSError, PosthouseError) as failure:
            log.error("endpoint_not_served", subject=endpoint.subject, reason=str(failure))
            server.stop()
            self._core.ledger.submit(_ReleaseEndpoint(self._core, self, server, is_final=True))
            return None
        if mode.group:
            self._watch_peers()
        if self._registered.get(endpoint.subject) is not endpoint:  # dropped while it joined
            self._stop(endpoint)
        else:
            self._update(endpoint)
        return server

    def _remove(self, server: EndpointServer) -> None:
        number = server.endpoint.number
        if self._servers.get(number) is server:
            del self._servers[number]
            del self._core.servers[number]

    def _stop(self, endpoint: Endpoint) -> None:
        self._standby.pop(endpoint.number, None)
        server = self._servers.get(endpoint.number)
        if server is not None and not server.is_stopped:
            self._watcher.remove_mailbox(server.arrivals)
            if server.stop():
                self.on_stopped(server)

    def on_stopped(self, server: EndpointServer) -> None:
        """Commit the last operations of a stopped server, then give up its row."""
        self._core.ledger.submit(_ReleaseEndpoint(self._core, self, server))

    def on_released(self, server: EndpointServer, is_final: bool) -> None:
        """Remove a server whose operations are committed; serve the endpoint again if it was subscribed meanwhile."""
        server.announce_given_back()
        self._remove(server)
        self._server_released.set()
        endpoint = server.endpoint
        if self._registered.get(endpoint.subject) is endpoint and not self._is_closed and not is_final:
            self._update(endpoint)

    # dead peers

    def _watch_peers(self) -> None:
        if self._watching is None and not self._is_closed:
            self._watching = self._core.loop.create_task(self._watch(), context=self._core.context.copy())

    async def _watch(self) -> None:
        while watched := self._shared_endpoints():
            await asyncio.sleep(WATCH_S)
            try:
                rows = await self._core.store.pool.run(lambda db, watched=watched: _servers_of(db, watched))  # type: ignore[misc]
                self._replace_dead(rows)
            except (OSError, PosthouseError) as failure:  # the next check tries again
                log.warning("dead_servers_not_replaced", reason=str(failure))
        self._watching = None

    def _shared_endpoints(self) -> list[int]:
        """Return the endpoints whose messages another process may have."""
        return [*self._standby, *(number for number, server in self._servers.items() if server.mode.group)]

    def _replace_dead(self, rows: list[tuple[int, int, str | None]]) -> None:
        procs = self._core.directory.procs
        alive = {name: is_alive(procs, name) for name in {name for _, _, name in rows} if name is not None}
        living = {endpoint for endpoint, _, name in rows if name is not None and alive[name]}
        for number, instance, name in rows:
            server = self._servers.get(number)
            if server is not None and instance != self._core.instance.number and not alive.get(name or ""):
                self._core.ledger.submit(_ReleaseDead(self._core, server.endpoint, instance))
        for number, endpoint in list(self._standby.items()):
            if number not in living:
                del self._standby[number]
                self._update(endpoint)

    # closing

    def abandon(self) -> None:
        """Cancel all handlers, because the store has failed; messages stay where they are."""
        self._is_closed = True
        for server in list(self._servers.values()):
            server.stop()
            server.cancel()
            self._remove(server)

    async def close(self) -> None:
        """Stop all servers; messages whose handlers need too long go back to new/."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
        for endpoint in list(self._registered.values()):
            self._stop(endpoint)
        deadline = self._core.loop.time() + _CLOSE_GRACE_S
        while self._servers and (left := deadline - self._core.loop.time()) > 0:
            self._server_released.clear()
            try:
                await asyncio.wait_for(self._server_released.wait(), left)
            except TimeoutError:
                break
        for server in list(self._servers.values()):
            server.cancel()
            self.on_stopped(server)
        await self._core.ledger.flush()

    def close_threads(self) -> None:
        """End the threads of sync handlers; those that still run end with their handler."""
        self._threads.close()
        self._deadlines.close()


def _servers_of(db: Any, endpoints: list[int]) -> list[tuple[int, int, str | None]]:
    rows: list[tuple[int, int, str | None]] = db.execute(SQL.servers_of_endpoints, (json.dumps(endpoints),)).fetchall()
    return rows


class _JoinEndpoint:
    """Ledger operation: become a server of an endpoint, unless another process excludes it."""

    def __init__(self, core: Core, servers: EndpointServers, endpoint: Endpoint, mode: ServeMode) -> None:
        self._core = core
        self._servers = servers
        self.endpoint = endpoint
        self.mode = mode
        #: resolves when the operation has ended, whatever its result
        self.done: asyncio.Future[None] = core.loop.create_future()
        #: a caller starts the server when it continues
        self.is_awaited = False
        self.server: EndpointServer | None = None
        self._reset()

    def _reset(self) -> None:
        self.is_server = self.has_to_wait = False
        self.conflict: PosthouseError | None = None
        self.leftovers: Leftovers = []
        self.last_id: str | None = None

    def apply(self, tx: BusTransaction) -> None:
        self._reset()
        counters = tx.endpoint(self.endpoint.number)
        if counters is None:  # unregistered meanwhile
            return
        groups = self._release_dead_servers(tx)
        others = groups - {self.mode.group}
        if others:
            self.conflict = group_conflict(self.endpoint.subject, others.pop(), self.mode.group)
            return
        if groups and not self.mode.group:
            self.has_to_wait = True
            return
        tx.db.execute(SQL.add_server, (self.endpoint.number, self._core.instance.number, self.mode.group))
        if not groups:
            mailbox = self._core.directory.mailbox(self.endpoint.hash)
            self.leftovers += redeliver_all(self._core, tx, self.endpoint, mailbox)
            counters.set_breaker(BreakerState(boot_id=tx.boot_id))
            tx.journal.append("bus.served", ref=self.endpoint.subject, body=endpoint_fields(self.endpoint))
        counters.is_served = self.is_server = True
        self.last_id = counters.last_id

    def _release_dead_servers(self, tx: BusTransaction) -> set[str]:
        """Return the groups of the living servers."""
        rows: Any = tx.db.execute(SQL.servers_of_endpoint, (self.endpoint.number,)).fetchall()
        groups = set()
        for instance, group, name in rows:
            if instance == self._core.instance.number:
                continue
            if name is not None and is_alive(self._core.directory.procs, name):
                groups.add(group)
            else:
                self.leftovers += release_dead_server(self._core, tx, self.endpoint, instance)
        return groups

    def on_committed(self) -> None:
        try:
            self._servers.on_joined(self)
        finally:
            self._end()

    def start_server(self) -> None:
        """Let the server take messages; a second call does nothing."""
        server, self.server = self.server, None
        if server is not None and not server.is_stopped:
            server.arrivals.start(self.last_id)

    def on_failed(self, failure: Exception) -> bool:
        self._servers.on_join_failed(self)
        log.error("endpoint_not_served", subject=self.endpoint.subject, reason=str(failure))
        self._end()
        return False

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _ReleaseEndpoint:
    """The last ledger operation of a server: its row is deleted only after everything before it is committed."""

    __slots__ = ("_core", "_is_final", "_server", "_servers")

    def __init__(self, core: Core, servers: EndpointServers, server: EndpointServer, is_final: bool = False) -> None:
        self._core = core
        self._servers = servers
        self._server = server
        #: housekeeping retries serving the endpoint, not the release
        self._is_final = is_final

    def apply(self, tx: BusTransaction) -> None:
        endpoint, instance = self._server.endpoint, self._core.instance.number
        self._server.give_back()
        tx.db.execute(SQL.unclaim_all, (instance, endpoint.number))
        release_server(tx, endpoint, instance)

    def on_committed(self) -> None:
        self._servers.on_released(self._server, self._is_final)

    def on_failed(self, _failure: Exception) -> bool:
        return True


class _ReleaseDead:
    """Ledger operation: deliver the claims of a dead process of the group again."""

    __slots__ = ("_core", "_endpoint", "_instance", "_leftovers")

    def __init__(self, core: Core, endpoint: Endpoint, instance: int) -> None:
        self._core = core
        self._endpoint = endpoint
        self._instance = instance
        self._leftovers: Leftovers = []

    def apply(self, tx: BusTransaction) -> None:
        self._leftovers = release_dead_server(self._core, tx, self._endpoint, self._instance)

    def on_committed(self) -> None:
        remove_leftovers(self._core, self._endpoint, self._leftovers)

    def on_failed(self, _failure: Exception) -> bool:
        """Do nothing: the next check finds the same process dead."""
        return False


class _RemoveEnded:
    """Ledger operation: remove files of ended messages that a group has in cur/.

    The process that gives back the messages of a dead one may be killed too, before it removes the leftovers.
    """

    __slots__ = ("_core", "_endpoint", "_leftovers")

    def __init__(self, core: Core, endpoint: Endpoint) -> None:
        self._core = core
        self._endpoint = endpoint
        self._leftovers: Leftovers = []

    def apply(self, tx: BusTransaction) -> None:
        mailbox = self._core.directory.find_mailbox(self._endpoint.hash)
        self._leftovers = [] if mailbox is None else find_ended(tx, self._endpoint, mailbox)

    def on_committed(self) -> None:
        remove_leftovers(self._core, self._endpoint, self._leftovers)

    def on_failed(self, _failure: Exception) -> bool:
        """Give up: the next rescan tries again."""
        return False
