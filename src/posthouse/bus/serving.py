"""Endpoints that this process has registered, serves, or stands by for.

A process serves an endpoint while it has registered it, has a subscription that its messages can reach, and holds
its serve.lock. A process that lacks only the lock stands by and polls for it; the kernel releases the lock of a dead
process, so a stand-by takes over within a second. A new server starts with a closed breaker.
"""

from __future__ import annotations

import asyncio

from posthouse.bus.core import Core
from posthouse.bus.endpoint_server import EndpointServer
from posthouse.bus.handlers import HandlerThreads, Subscriptions, overlaps
from posthouse.bus.inotify import Watcher
from posthouse.bus.maildir import ServeLock
from posthouse.bus.results import Endpoint
from posthouse.bus.settling import endpoint_fields
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.breaker import BreakerState
from posthouse.model.errors import PosthouseError
from posthouse.model.subjects import is_pattern, matches

log = get_log(__name__)
STANDBY_POLL_S = 0.1  # replaces a dead server well within a second
_CLOSE_GRACE_S = 1.0  # how long handlers may finish when the bus closes


class EndpointServers:
    """The serving side of one open Bus."""

    def __init__(self, core: Core, subscriptions: Subscriptions, watcher: Watcher) -> None:
        self._core = core
        self._subscriptions = subscriptions
        self._threads = HandlerThreads()
        self._watcher = watcher
        self._registered: dict[str, Endpoint] = {}
        self._servers: dict[int, EndpointServer] = {}
        self._standby: dict[int, tuple[Endpoint, ServeLock]] = {}
        self._poll: asyncio.TimerHandle | None = None
        self._server_released = asyncio.Event()
        self._is_closed = False

    def find(self, number: int) -> EndpointServer | None:
        """Return the server of an endpoint if this process serves it."""
        return self._servers.get(number)

    def on_registered(self, endpoint: Endpoint) -> None:
        """Serve the endpoint from now on if a subscription can receive its messages."""
        known = self._registered.get(endpoint.subject)
        if known is not None and known.number != endpoint.number:
            self.drop(known)
        self._registered[endpoint.subject] = endpoint
        self._update(endpoint)

    def on_subscriptions_changed(self, pattern: str) -> None:
        """Start and stop servers of the endpoints that the pattern concerns."""
        for endpoint in list(self._registered.values()):
            is_catch_all = is_pattern(endpoint.subject)
            if overlaps(endpoint.subject, pattern) if is_catch_all else matches(endpoint.subject, pattern):
                self._update(endpoint)

    def drop(self, endpoint: Endpoint) -> None:
        """Stop serving an endpoint at once, because it is being unregistered; its messages stay."""
        self._registered.pop(endpoint.subject, None)
        self._stop(endpoint)
        server = self._servers.get(endpoint.number)
        if server is not None:
            server.cancel()
            self._remove(server)
        self._core.ledger.flush()

    def drop_unregistered(self, registered: dict[str, Endpoint]) -> None:
        """Drop endpoints that another process has unregistered."""
        for subject, endpoint in list(self._registered.items()):
            found = registered.get(subject)
            if found is None or found.number != endpoint.number:
                self.drop(endpoint)

    def rescan(self) -> None:
        """Rescan all served mailboxes, and try again to serve those that could not be served."""
        for endpoint in list(self._registered.values()):
            if endpoint.number not in self._servers and endpoint.number not in self._standby:
                self._update(endpoint)
        for server in list(self._servers.values()):
            server.rescan()

    def _update(self, endpoint: Endpoint) -> None:
        if self._is_closed or not self._subscriptions.can_reach(endpoint.subject):
            self._stop(endpoint)
            return
        server = self._servers.get(endpoint.number)
        if server is not None:
            if is_pattern(endpoint.subject) and not server.is_stopped:
                server.rescan()  # for messages that no handler has matched so far
        elif endpoint.number not in self._standby:
            self._start(endpoint)

    def _start(self, endpoint: Endpoint) -> None:
        """Serve or stand by; a damaged mailbox must not keep other endpoints from being served."""
        try:
            self._try_serve(endpoint, ServeLock(self._core.directory.mailbox(endpoint.hash)))
        except (OSError, PosthouseError) as failure:
            log.error("endpoint_not_served", subject=endpoint.subject, reason=str(failure))

    def _try_serve(self, endpoint: Endpoint, lock: ServeLock) -> None:
        if not lock.take():
            self._standby[endpoint.number] = (endpoint, lock)
            self._schedule_poll()
            return
        server = EndpointServer(self._core, endpoint, lock, self._subscriptions, self._threads, self.on_stopped)
        self._servers[endpoint.number] = self._core.servers[endpoint.number] = server
        try:
            instance = self._core.instance.number
            last_id = self._core.ledger.run(lambda tx: _record_served(tx, endpoint, instance))
            self._watcher.add_mailbox(self._core.directory.path_of(endpoint.hash) / "new", server)
            server.start(last_id)
        except (OSError, PosthouseError):
            self._watcher.remove_mailbox(server)
            self._remove(server)
            raise

    def _remove(self, server: EndpointServer) -> None:
        number = server.endpoint.number
        if self._servers.get(number) is server:
            del self._servers[number]
            del self._core.servers[number]
        server.release()

    def _stop(self, endpoint: Endpoint) -> None:
        standby = self._standby.pop(endpoint.number, None)
        if standby is not None:
            standby[1].close()
        server = self._servers.get(endpoint.number)
        if server is not None and not server.is_stopped:
            self._watcher.remove_mailbox(server)
            if server.stop():
                self.on_stopped(server)

    def on_stopped(self, server: EndpointServer) -> None:
        """Commit the last operations of a stopped server, then release its lock."""
        self._core.ledger.submit(_ReleaseEndpoint(self, server, self._core.instance.number))

    def on_released(self, server: EndpointServer) -> None:
        """Remove a server whose operations are committed; serve the endpoint again if it was subscribed meanwhile."""
        self._remove(server)
        self._server_released.set()
        if server.endpoint.subject in self._registered and not self._is_closed:
            self._update(server.endpoint)

    def _schedule_poll(self) -> None:
        if self._poll is None and not self._is_closed:
            self._poll = self._core.loop.call_later(STANDBY_POLL_S, self._try_standby, context=self._core.context)

    def _try_standby(self) -> None:
        self._poll = None
        standby, self._standby = self._standby, {}
        for endpoint, lock in standby.values():
            try:
                self._try_serve(endpoint, lock)
            except (OSError, PosthouseError) as failure:  # housekeeping tries again
                log.error("endpoint_not_served", subject=endpoint.subject, reason=str(failure))

    def abandon(self) -> None:
        """Cancel all handlers and release all locks, because the store has failed; messages stay where they are."""
        self._is_closed = True
        for server in list(self._servers.values()):
            server.stop()
            server.cancel()
            self._remove(server)

    async def close(self) -> None:
        """Stop all servers; messages whose handlers need too long stay in cur/ for the next server."""
        self._is_closed = True
        if self._poll is not None:
            self._poll.cancel()
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
        self._core.ledger.flush()

    def close_threads(self) -> None:
        """End the threads of sync handlers; those that still run end with their handler."""
        self._threads.close()


class _ReleaseEndpoint:
    """Ledger operation, the last of a server: its lock is released only after everything before is committed."""

    __slots__ = ("_instance", "_server", "_servers")

    def __init__(self, servers: EndpointServers, server: EndpointServer, instance: int) -> None:
        self._servers = servers
        self._server = server
        self._instance = instance

    def apply(self, tx: BusTransaction) -> None:
        number = self._server.endpoint.number
        tx.db.execute(SQL.clear_served, (number, self._instance))
        if tx.db.changes() == 1:
            record_unserved(tx, self._server.endpoint)
        counters = tx.endpoint(number)
        if counters is not None and counters.served_by == self._instance:
            counters.served_by = None

    def on_committed(self) -> None:
        self._servers.on_released(self._server)

    def on_failed(self, _failure: Exception) -> bool:
        return True


def _record_served(tx: BusTransaction, endpoint: Endpoint, instance: int) -> str | None:
    """Record this process as the server and close the breaker; return the newest id reserved so far."""
    tx.db.execute(SQL.set_served, (instance, endpoint.number))
    counters = tx.endpoint(endpoint.number)
    if counters is None:
        return None
    counters.set_breaker(BreakerState(boot_id=tx.boot_id))
    tx.journal.append("bus.served", ref=endpoint.subject, body=endpoint_fields(endpoint))
    return counters.last_id


def record_unserved(tx: BusTransaction, endpoint: Endpoint) -> None:
    """Record that no process serves the endpoint now."""
    tx.journal.append("bus.left", ref=endpoint.subject, body=endpoint_fields(endpoint))
