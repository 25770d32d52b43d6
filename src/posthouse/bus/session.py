"""Build the parts of one open Bus, start them, and close them again.

Opening recovers what dead processes left before the parts start that run on the event loop. Closing stops serving,
commits the remaining operations, and releases locks, descriptors, threads and databases in reverse order. When the
disk fails under the store, the session closes itself and every later call raises that failure.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from posthouse.bus import polling
from posthouse.bus.core import Core
from posthouse.bus.dead_letters import UnroutedLetters
from posthouse.bus.handlers import Subscriptions, is_reached
from posthouse.bus.housekeeping import Housekeeping
from posthouse.bus.index.message_index import IndexUpdater
from posthouse.bus.options import BusOptions
from posthouse.bus.publishing import Publisher
from posthouse.bus.request_reply import Requests
from posthouse.bus.running import clean_context
from posthouse.bus.serving import EndpointServers
from posthouse.bus.signals import Signals
from posthouse.bus.sync import ENDING_SIGNALS
from posthouse.bus.taps import Followers
from posthouse.bus.waiting import WaitingPublishes
from posthouse.bus.watching import PortableWatcher, Watcher
from posthouse.log import get_log
from posthouse.model.envelope import Envelope
from posthouse.model.errors import Fatal, PosthouseError, error

log = get_log(__name__)
#: False on other systems, such as macOS, where PortableWatcher takes its place
HAS_INOTIFY = sys.platform == "linux"
_LOOK_AGAIN_S = 1.0  # files that another program puts into a mailbox without a server have no journal record


class Session:
    """The parts of one open Bus."""

    core: Core

    def __init__(self, options: BusOptions) -> None:
        #: why the bus has closed itself
        self.failure: Fatal | None = None
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._context = clean_context()
        self._is_open = False
        self._closing: asyncio.Task[None] | None = None
        #: events of calls that wait for a signal or for mail, set when the session closes
        self._waiting: set[asyncio.Event] = set()
        #: patterns of subscriptions that no endpoint matched
        self._unmatched: set[str] = set()
        self._opened = ExitStack()

    @classmethod
    async def open(cls, options: BusOptions) -> Session:
        """Open the data directory, recover what dead processes left, then start the background tasks."""
        session = cls(options)
        session.core = await Core.open(options, session._context, session._on_fatal)
        session._opened.callback(session.core.close)
        try:
            session._build(options)
            session._is_open = True
            await session.housekeeping.start()
            session.index.start()
        except BaseException:
            await session.close()
            raise
        return session

    def _build(self, options: BusOptions) -> None:
        core = self.core
        self.watcher = _make_watcher(core)
        self._opened.callback(self.watcher.close)
        self.subscriptions = Subscriptions()
        self.signals = Signals(core.loop, core.context, options.max_listeners)
        self.servers = EndpointServers(core, self.subscriptions, self.watcher)
        self.publisher = Publisher(core, self.signals)
        self.waiting = WaitingPublishes(self.publisher, self.servers.gate)
        self.followers = Followers(core, self.watcher)
        self.requests = Requests(core, self.servers, self.subscriptions, self.publisher)
        self.index = IndexUpdater(core)
        self.unrouted = UnroutedLetters(core, self.index)
        self.housekeeping = Housekeeping(core, self.servers, self.publisher, self.index, options.retention)

    async def warn_if_unmatched(self, pattern: str) -> None:
        """Log, once per pattern, that no endpoint can pass messages to a subscription."""
        registry = await self.core.ledger.run(lambda tx: tx.registry)
        if pattern in self._unmatched or any(is_reached(subject, pattern) for subject in registry.by_subject):
            return
        self._unmatched.add(pattern)
        log.warning("subscription_matches_no_endpoint", pattern=pattern, hint="register the endpoint that it serves")

    async def serve(self) -> None:
        """Wait for SIGINT, SIGTERM or the end of the session; raise the failure that ended it."""
        with self._woken() as ended, _ENDING.listen(self._loop, ended.set):
            await ended.wait()
        if self.failure is not None:
            raise self.failure

    async def next_message(self, subject: str, timeout_s: float | None, after: str | None) -> Envelope | None:
        """Return the oldest waiting message of an endpoint, or None if none arrives in time."""
        core, deadline_s = self.core, math.inf if timeout_s is None else self._loop.time() + timeout_s
        with self._ended_as_bus(), self._woken() as arrived:
            if found := await polling.read_inbox(core, subject, 1, after):
                return found[0]
            follower = await polling.follow_arrivals(self.followers, subject, arrived.set)
            try:
                while True:
                    arrived.clear()
                    if self._closing is not None:
                        raise error("bus_closed", path=str(self._options.path))
                    if found := await polling.read_inbox(core, subject, 1, after):
                        return found[0]
                    if self._loop.time() >= deadline_s:
                        return None
                    with suppress(TimeoutError):
                        await asyncio.wait_for(arrived.wait(), min(_LOOK_AGAIN_S, deadline_s - self._loop.time()))
            finally:
                await self.followers.end(follower)

    @contextmanager
    def _ended_as_bus(self) -> Iterator[None]:
        """Raise bus_closed where a read fails because the session closed its store in the meantime."""
        try:
            yield
        except PosthouseError as failure:
            if self._closing is None or failure.code != "store_closed":
                raise
            raise error("bus_closed", path=str(self._options.path)) from failure

    @contextmanager
    def _woken(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set at the latest when the session closes."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    async def close(self) -> None:
        """Stop and release everything, or wait until another call has done so."""
        await asyncio.shield(self._start_closing())

    def _start_closing(self) -> asyncio.Task[None]:
        if self._closing is None:
            for waiting in self._waiting:
                waiting.set()
            self._closing = self._loop.create_task(self._close(), context=self._context.copy())
        return self._closing

    async def _close(self) -> None:
        if self.failure is None:
            await self.requests.close()
        await self.servers.close()
        # after the servers: a handler that waits gives its message back instead of failing
        self.waiting.close()
        self.requests.fail(self.failure or error("bus_closed", path=str(self._options.path)))
        await self.publisher.close()
        await self.followers.close()
        await self.housekeeping.close()
        await self.unrouted.close()
        await self.index.close()
        self.signals.close()
        self.servers.close_threads()
        if self.failure is None:
            self.publisher.refusals.flush()
            await self.core.deregister()
        self._opened.close()

    def _on_fatal(self, failure: Fatal) -> None:
        """Close the bus, because its store can no longer be trusted; may run on the checkpoint's thread."""
        self.failure = failure
        log.error("bus_failed", path=str(self._options.path), reason=str(failure))
        try:
            self._loop.call_soon_threadsafe(self._abandon, failure, context=self._context)
        except RuntimeError:  # the loop has ended
            return

    def _abandon(self, failure: Fatal) -> None:
        """Cancel handlers and requests, then close, so that other processes take over."""
        if self._is_open:
            self.servers.abandon()
            self.requests.fail(failure)
            self._start_closing()


def _make_watcher(core: Core) -> Watcher:
    if not HAS_INOTIFY:
        return PortableWatcher(core.loop, core.context, core.directory.mailboxes, core.directory.tick)
    from posthouse.bus.inotify import InotifyWatcher  # cannot be imported on other systems

    return InotifyWatcher(core.loop, core.context)


class _EndingSignals:
    """The handlers of SIGINT and SIGTERM while a Bus of this process serves; several share them."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def listen(self, loop: asyncio.AbstractEventLoop, notify: Callable[[], None]) -> Iterator[None]:
        """Call `notify` for either signal; only the main thread can see them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._listeners.append(notify)
        if len(self._listeners) == 1:
            self._before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
            for number in ENDING_SIGNALS:
                loop.add_signal_handler(number, self._notify)
        try:
            yield
        finally:
            self._listeners.remove(notify)
            if not self._listeners:
                for number, handler in self._before.items():
                    loop.remove_signal_handler(number)
                    signal.signal(number, handler)

    def _notify(self) -> None:
        for notify in self._listeners:
            notify()


_ENDING = _EndingSignals()
