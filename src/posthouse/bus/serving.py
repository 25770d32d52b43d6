"""Endpoints that this process has registered, serves, or stands by for.

A process serves an endpoint while it has registered it, has a subscription that its messages can reach, and holds
its serve.lock. A process that lacks only the lock stands by and polls for it; the kernel releases the lock of a dead
process, so a stand-by takes over within a second. A new server starts with a closed breaker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from posthouse.bus.endpoint_server import EndpointServer
from posthouse.bus.handlers import overlaps
from posthouse.bus.maildir import ServeLock
from posthouse.bus.results import Endpoint
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.breaker import BreakerState
from posthouse.model.errors import PosthouseError
from posthouse.model.subjects import is_pattern, matches

if TYPE_CHECKING:
    from posthouse.bus.session import Session


log = get_log(__name__)
STANDBY_POLL_S = 0.1  # a dead server is replaced well within a second
_CLOSE_GRACE_S = 1.0  # how long handlers may finish when the bus closes


class EndpointServers:
    """The serving side of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._registered: dict[str, Endpoint] = {}
        self._servers: dict[int, EndpointServer] = {}
        self._standby: dict[int, tuple[Endpoint, ServeLock]] = {}
        self._poll: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._is_closed = False
        #: endpoints whose next message waits only for the one in work
        self.backlogged: set[int] = set()
        #: grows whenever a handler starts or ends
        self.steps = 0

    def server(self, number: int) -> EndpointServer | None:
        """Return the server of an endpoint if this process serves it."""
        return self._servers.get(number)

    def count_steps(self) -> int:
        """Return a number that grows while handlers run through a backlog; -1 when there is none."""
        return self.steps if self.backlogged else -1

    @property
    def servers(self) -> list[EndpointServer]:
        return list(self._servers.values())

    def registered(self, endpoint: Endpoint) -> None:
        """This process may serve the endpoint from now on."""
        known = self._registered.get(endpoint.subject)
        if known is not None and known.number != endpoint.number:
            self.drop(known)
        self._registered[endpoint.subject] = endpoint
        self._consider(endpoint)

    def drop(self, endpoint: Endpoint) -> None:
        """The endpoint is not ours any more: stop at once, leaving its mail."""
        self._registered.pop(endpoint.subject, None)
        self._stop(endpoint)
        server = self._servers.pop(endpoint.number, None)
        if server is not None:
            server.cancel()
            server.release()
        self._session.ledger.flush()

    def subscriptions_changed(self, pattern: str) -> None:
        """Serve what can be served now, and stop serving what nobody listens to."""
        for endpoint in list(self._registered.values()):
            is_catch_all = is_pattern(endpoint.subject)
            if overlaps(endpoint.subject, pattern) if is_catch_all else matches(endpoint.subject, pattern):
                self._consider(endpoint)

    def forget_unregistered(self, known: dict[str, Endpoint]) -> None:
        """Let go of endpoints that another process has unregistered."""
        for subject, endpoint in list(self._registered.items()):
            found = known.get(subject)
            if found is None or found.number != endpoint.number:
                self.drop(endpoint)

    def _consider(self, endpoint: Endpoint) -> None:
        if self._is_closed or not self._session.subscriptions.reach(endpoint.subject):
            self._stop(endpoint)
            return
        server = self._servers.get(endpoint.number)
        if server is not None:
            if is_pattern(endpoint.subject) and not server.is_stopped:
                server.look()  # mail that no handler matched so far
        elif endpoint.number not in self._standby:
            self._begin(endpoint)

    def reconsider(self) -> None:
        """Try again to serve what could not be served, such as a mailbox that has been repaired."""
        for endpoint in list(self._registered.values()):
            if endpoint.number not in self._servers and endpoint.number not in self._standby:
                self._consider(endpoint)

    def _begin(self, endpoint: Endpoint) -> None:
        """Serve or stand by; one damaged mailbox must not keep the others from their mail."""
        try:
            self._try(endpoint, ServeLock(self._session.directory.mailbox(endpoint.hash)))
        except (OSError, PosthouseError) as failure:
            log.error("endpoint_not_served", subject=endpoint.subject, reason=str(failure))

    def _try(self, endpoint: Endpoint, lock: ServeLock) -> bool:
        if not lock.take():
            self._standby[endpoint.number] = (endpoint, lock)
            self._schedule()
            return False
        server = self._servers[endpoint.number] = EndpointServer(self._session, endpoint, lock)
        try:
            number = self._session.instance.number
            last_id = self._session.ledger.run(lambda page: record_served(page, endpoint, number))
            self._session.watch.add_mailbox(self._session.directory.path_of(endpoint.hash) / "new", server)
            server.start(last_id)
        except (OSError, PosthouseError):
            self._session.watch.remove_mailbox(server)
            del self._servers[endpoint.number]
            lock.close()
            raise
        return True

    def _stop(self, endpoint: Endpoint) -> None:
        standby = self._standby.pop(endpoint.number, None)
        if standby is not None:
            standby[1].close()
        server = self._servers.get(endpoint.number)
        if server is not None and not server.is_stopped:
            self._session.watch.remove_mailbox(server)
            if server.stop():
                self.stopped(server)

    def stopped(self, server: EndpointServer) -> None:
        """A server has nothing in work any more: book what it did, then free the lock."""
        self._session.ledger.submit(_ReleaseEndpoint(self, server, self._session.instance.number))

    def left(self, server: EndpointServer) -> None:
        """Everything the server did is booked."""
        if self._servers.get(server.endpoint.number) is server:
            del self._servers[server.endpoint.number]
        server.release()
        self._idle.set()
        if server.endpoint.subject in self._registered and not self._is_closed:
            self._consider(server.endpoint)

    def _schedule(self) -> None:
        if self._poll is None and not self._is_closed:
            context = self._session.context
            self._poll = self._session.loop.call_later(STANDBY_POLL_S, self._try_standby, context=context)

    def _try_standby(self) -> None:
        self._poll = None
        waiting, self._standby = self._standby, {}
        for endpoint, lock in waiting.values():
            try:
                self._try(endpoint, lock)
            except (OSError, PosthouseError) as failure:  # housekeeping comes back to it
                log.error("endpoint_not_served", subject=endpoint.subject, reason=str(failure))

    def abandon(self) -> None:
        """The store has failed: take no more messages and free the locks; mail stays where it is."""
        self._is_closed = True
        for server in self.servers:
            server.stop()
            server.cancel()
            server.release()
        self._servers.clear()

    async def close(self) -> None:
        """Stop everything; handlers get a moment, then their messages stay in cur/ for the next server."""
        self._is_closed = True
        if self._poll is not None:
            self._poll.cancel()
        for endpoint in list(self._registered.values()):
            self._stop(endpoint)
        deadline = self._session.loop.time() + _CLOSE_GRACE_S
        while self._servers and (left := deadline - self._session.loop.time()) > 0:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), left)
            except TimeoutError:
                break
        for server in self.servers:
            server.cancel()
            self.stopped(server)
        self._session.ledger.flush()


class _ReleaseEndpoint:
    """The last entry of a server: the lock is freed only after all before it is booked."""

    __slots__ = ("_instance", "_server", "_serving")

    def __init__(self, serving: EndpointServers, server: EndpointServer, instance: int) -> None:
        self._serving = serving
        self._server = server
        self._instance = instance

    def apply(self, page: BusTransaction) -> None:
        page.db.execute(SQL.clear_served, (self._server.endpoint.number, self._instance))
        if page.db.changes() == 1:
            record_unserved(page, self._server.endpoint)
        counters = page.endpoint(self._server.endpoint.number)
        if counters is not None and counters.served_by == self._instance:
            counters.served_by = None

    def committed(self) -> None:
        self._serving.left(self._server)

    def failed(self, _failure: Exception) -> bool:
        return True


def record_served(page: BusTransaction, endpoint: Endpoint, instance: int) -> str | None:
    """Enter this process as the server and close the breaker; return the newest id reserved so far."""
    page.db.execute(SQL.set_served, (instance, endpoint.number))
    counters = page.endpoint(endpoint.number)
    if counters is None:
        return None
    counters.set_breaker(BreakerState(boot_id=page.boot_id))
    page.tx.append(
        "bus.served", ref=endpoint.subject, body={"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash}
    )
    return counters.last_id


def record_unserved(page: BusTransaction, endpoint: Endpoint) -> None:
    """Write down that nobody serves the endpoint any more."""
    page.tx.append(
        "bus.left", ref=endpoint.subject, body={"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash}
    )
