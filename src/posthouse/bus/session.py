"""Build the parts of one open Bus, start them, and close them again.

Opening recovers what dead processes left before the parts start that run on the event loop. Closing stops serving,
commits the remaining operations, and releases locks, descriptors, threads and databases in reverse order. When the
disk fails under the store, the session closes itself and every later call raises that failure.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from posthouse.bus.admission import clean_context
from posthouse.bus.core import Core
from posthouse.bus.handlers import Subscriptions
from posthouse.bus.housekeeping import Housekeeping
from posthouse.bus.index.message_index import IndexUpdater
from posthouse.bus.inotify import Watcher
from posthouse.bus.options import BusOptions
from posthouse.bus.publishing import Publisher
from posthouse.bus.request_reply import Requests
from posthouse.bus.serving import EndpointServers
from posthouse.bus.signals import Signals
from posthouse.bus.taps import Followers
from posthouse.bus.waiting import WaitingPublishes
from posthouse.log import get_log
from posthouse.model.errors import Fatal

log = get_log(__name__)


class Session:
    """The parts of one open Bus."""

    def __init__(self, options: BusOptions) -> None:
        #: why the bus has closed itself
        self.failure: Fatal | None = None
        self._path = options.path
        self._loop = asyncio.get_running_loop()
        self._context = clean_context()
        self._is_open = False
        self._closing: asyncio.Task[None] | None = None
        with ExitStack() as opened:
            self.core = Core(options, self._context, self._on_fatal)
            opened.callback(self.core.close)
            self.watcher = Watcher(self._loop, self._context)
            opened.callback(self.watcher.close)
            self._build(options)
            self._opened = opened.pop_all()
        self._is_open = True

    def _build(self, options: BusOptions) -> None:
        core = self.core
        self.subscriptions = Subscriptions()
        self.signals = Signals(core.loop, core.context, options.max_listeners)
        self.servers = EndpointServers(core, self.subscriptions, self.watcher)
        self.publisher = Publisher(core, self.signals)
        self.waiting = WaitingPublishes(self.publisher)
        self.followers = Followers(core, self.watcher)
        self.requests = Requests(core, self.servers, self.subscriptions)
        self.index = IndexUpdater(core)
        self.housekeeping = Housekeeping(core, self.servers, self.publisher, self.index, options.retention)

    async def start(self) -> None:
        """Recover what dead processes left, then start the background tasks."""
        await self.housekeeping.start()
        self.index.start()

    async def close(self) -> None:
        """Stop and release everything, or wait until another call has done so."""
        await asyncio.shield(self._start_closing())

    def _start_closing(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), context=self._context.copy())
        return self._closing

    async def _close(self) -> None:
        if self.failure is None:
            self.requests.close()
        await self.servers.close()
        await self.publisher.close()
        await self.followers.close()
        await self.housekeeping.close()
        await self.index.close()
        self.signals.close()
        self.servers.close_threads()
        if self.failure is None:
            self.publisher.refusals.flush()
            self.core.deregister()
        self._opened.close()

    def _on_fatal(self, failure: Fatal) -> None:
        """Close the bus, because its store can no longer be trusted; may run on the checkpoint's thread."""
        self.failure = failure
        log.error("bus_failed", path=str(self._path), reason=str(failure))
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
