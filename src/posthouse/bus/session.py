"""Open a data directory and close it again: everything that one open Bus holds.

Opening order: directory, instance lock, store, recovery of what dead processes left, then the parts that run on the
event loop. Closing stops serving, commits the remaining operations, and releases locks, descriptors, threads and
databases in reverse order. When the disk fails under the store, the session closes itself and every later call
raises that failure.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from posthouse.bus.admission import clean_context
from posthouse.bus.data_directory import BusDirectory, Instance
from posthouse.bus.handlers import HandlerThreads, Subscriptions
from posthouse.bus.housekeeping import Housekeeping, Retention
from posthouse.bus.index.message_index import IndexUpdater
from posthouse.bus.inotify import Watcher
from posthouse.bus.ledger import Ledger
from posthouse.bus.maildir import SPARE_MAX_FILES, Mailbox, SpareFiles
from posthouse.bus.operator_files import ConfigFile, Policy, RulesFile
from posthouse.bus.publishing import RefusalLog, Syncer
from posthouse.bus.request_reply import Requests
from posthouse.bus.serving import EndpointServers
from posthouse.bus.signals import Signals
from posthouse.bus.taps import Followers
from posthouse.bus.transaction import SQL, BusTransaction, EndpointRegistry
from posthouse.journal.store import DirectStore
from posthouse.log import get_log
from posthouse.model.budget import BudgetCeiling, CycleRule
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError
from posthouse.model.limits import SECOND_NS
from posthouse.model.reliability import Reliability
from posthouse.sqlite.schema import Component

log = get_log(__name__)
BUS = Component("bus", "posthouse.bus")
_RESTART_AT_PAGES = 4_000  # 16 MiB of WAL: a message changes the same few pages, and each is then copied less often


@dataclass(frozen=True, slots=True)
class BusOptions:
    """What the Bus was told when it was made."""

    path: Path
    ceiling: BudgetCeiling
    cycle_rule: CycleRule
    is_power_safe: bool
    handler_timeout_s: float
    max_listeners: int
    reliability: Reliability
    #: None: what the settings of the user say when it is time to prune
    retention: Retention | None
    clock: Clock


class Session:
    """The parts of one open Bus."""

    def __init__(self, settings: BusOptions) -> None:
        self.clock = settings.clock
        self.handler_timeout_s = settings.handler_timeout_s
        self.retention = settings.retention
        self.loop = asyncio.get_running_loop()
        self.context = clean_context()
        self.failure: Fatal | None = None
        self._is_open = False
        self._closing: asyncio.Task[None] | None = None
        with ExitStack() as opened:
            self._open(settings, opened)
            self._assemble(settings)
            opened.callback(self.watch.close)
            self._opened = opened.pop_all()
        self._is_open = True

    def _open(self, settings: BusOptions, opened: ExitStack) -> None:
        """Open what has to be released, each in the way of none before it when a later one fails."""
        self.directory = BusDirectory(settings.path)
        opened.callback(self.directory.close)
        self.instance = Instance(self.directory.procs)
        opened.callback(self.instance.close)
        tick_fd = _open_tick(self.directory.tick)
        opened.callback(os.close, tick_fd)
        self.store = DirectStore(
            self.directory.database,
            (BUS,),
            self.clock,
            on_fatal=self._on_fatal,
            restart_at_pages=_RESTART_AT_PAGES,
        )
        opened.callback(self.store.close)
        self.policy = Policy(
            settings.ceiling, settings.cycle_rule, settings.reliability, RulesFile(self.directory.rules)
        )
        self.config = ConfigFile(self.directory.config, self.policy)
        self.ledger = Ledger(self.store, EndpointRegistry(), self.clock, tick_fd, self.loop, self.context)
        self.ledger.before += [self.policy.rules.refresh, self.config.refresh]
        self.instance.number = self.ledger.run(
            lambda page: page.db.execute(SQL.add_instance, (self.instance.name,)).get
        )

    def _assemble(self, settings: BusOptions) -> None:
        max_spares = 0 if settings.is_power_safe else SPARE_MAX_FILES
        self.spares = SpareFiles(self.instance.name, self.find_mailbox, max_spares)
        self.threads = HandlerThreads()
        self.subscriptions = Subscriptions()
        self.signals = Signals(self.loop, self.context, settings.max_listeners)
        self.refusals = RefusalLog(self.ledger, lambda: self.clock.wall_ns() // (60 * SECOND_NS))
        self.watch = Watcher(self.loop, self.context)
        self.serving = EndpointServers(self)
        self.ledger.steps = self.serving.count_steps
        self.syncer = Syncer(self) if settings.is_power_safe else None
        self.followers = Followers(self)
        self.requests = Requests(self)
        self.indexing = IndexUpdater(self)
        self.housekeeping = Housekeeping(self)

    async def start(self) -> None:
        """Recover what dead processes left, then begin to keep house."""
        await self.housekeeping.start()
        self.indexing.start()

    async def close(self) -> None:
        """Stop and release everything, or wait until that is done."""
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(), context=self.context.copy())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self.failure is None:
            self.requests.close()
        await self.serving.close()
        if self.syncer is not None:
            await self.syncer.close()
        await self.followers.close()
        await self.housekeeping.close()
        await self.indexing.close()
        self.signals.close()
        self.threads.close()
        if self.failure is None:
            self.refusals.write()
            self.ledger.flush()
            self._leave()
        self.spares.close()
        self._opened.close()

    def find_mailbox(self, hash_: str) -> Mailbox | None:
        """Return a mailbox, or None when there is none any more."""
        try:
            return self.directory.mailbox(hash_)
        except FileNotFoundError:
            return None

    def _leave(self) -> None:
        """Take our name off the list; what stays there when the store refuses is swept like that of a dead process."""
        number = self.instance.number

        def work(page: BusTransaction) -> None:
            page.db.execute(SQL.clear_served_by, (number,))
            if not page.db.execute(SQL.open_mail_of_instance, (number,)).fetchall():
                page.db.execute(SQL.remove_instance, (number,))

        try:
            self.ledger.run(work)
        except PosthouseError as failure:
            log.warning("bus_closed_without_leaving", reason=str(failure))

    def _on_fatal(self, failure: Fatal) -> None:
        """The store cannot be trusted any more; may be called from the checkpoint's thread."""
        self.failure = failure
        log.error("bus_failed", path=str(self.directory.root), reason=str(failure))
        try:
            self.loop.call_soon_threadsafe(self._abandon, failure, context=self.context)
        except RuntimeError:  # the loop has ended
            return

    def _abandon(self, failure: Fatal) -> None:
        """End what is in work, then close: a Bus that can promise nothing must not look alive to others."""
        if self._is_open:
            self.serving.abandon()
            self.requests.fail(failure)
            if self._closing is None:
                self._closing = self.loop.create_task(self._close(), context=self.context.copy())


def _open_tick(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)
    return fd
