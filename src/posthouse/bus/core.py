"""The opened data directory of one Bus, and the services that all of its parts use.

Opening order: directory, instance lock, tick file, store, operator files, ledger, spare files; closing runs in
reverse. Core knows no other part of the bus. Publishing reaches the endpoint servers of this process only through
LocalServer, so that imports go one way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import Context
from pathlib import Path
from typing import Protocol

import apsw

from posthouse.bus.data_directory import BusDirectory, Instance
from posthouse.bus.ledger import Ledger
from posthouse.bus.limits_in_force import own_limits
from posthouse.bus.maildir import SPARE_MAX_FILES, SpareFiles
from posthouse.bus.operator_files import ConfigFile, FileChecks, Policy, RulesFile
from posthouse.bus.options import BusOptions
from posthouse.bus.transaction import SQL, BusTransaction, EndpointRegistry
from posthouse.journal.store import DirectStore
from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.envelope import Envelope
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.storage.sql_files import Component

log = get_log(__name__)
BUS = Component("bus", "posthouse.bus")
_RESTART_AT_PAGES = 4_000  # 16 MiB of WAL: messages change the same few pages, so a longer WAL copies each less often


class LocalServer(Protocol):
    """The queue of an endpoint that this process serves, as publishing sees it."""

    def expect_own(self, id_: str) -> None:
        """Note that this process is about to store a message in new/, so that its inotify event can be ignored."""

    def find_earlier(self, tx: BusTransaction, id_: str, previous_id: str | None) -> list[str]:
        """Settle unknown messages that were reserved before `id_`; return their ids in order."""

    def offer_own(self, earlier: list[str], id_: str, data: bytes) -> None:
        """Queue `earlier` and then the message that this process has stored."""

    def rescan_later(self) -> None:
        """Rescan new/ after a short delay, because a stored message could not be offered."""


class Core:
    """The directory, store, ledger and policy of one open Bus."""

    def __init__(self, options: BusOptions, context: Context) -> None:
        self.clock = options.clock
        self.handler_timeout_s = options.handler_timeout_s
        self.max_attempts = options.max_attempts
        self.is_power_safe = options.is_power_safe
        self.max_payload_bytes = options.max_payload_bytes
        self.loop = asyncio.get_running_loop()
        #: context of every callback and task of the bus: no budget is inherited in it
        self.context = context
        #: endpoints that this process serves, by number
        self.servers: dict[int, LocalServer] = {}
        #: called with a message and the reason when its handler has failed
        self.on_handler_failed: Callable[[Envelope, str], None] = lambda _envelope, _reason: None
        self._opened = ExitStack()
        self.directory = BusDirectory(options.path)
        self._opened.callback(self.directory.close)

    @classmethod
    async def open(cls, options: BusOptions, context: Context, on_fatal: Callable[[Fatal], None]) -> Core:
        """Open the data directory and register this process in it."""
        core = cls(options, context)
        try:
            await core._open(options, on_fatal)
        except BaseException:
            core.close()
            raise
        return core

    async def _open(self, options: BusOptions, on_fatal: Callable[[Fatal], None]) -> None:
        opened = self._opened
        self.instance = Instance(self.directory.procs)
        opened.callback(self.instance.close)
        tick_fd = _open_tick(self.directory.tick)
        opened.callback(os.close, tick_fd)
        self.store = await _open_store(self.directory.database, self.clock, on_fatal)
        opened.callback(self.store.close)
        self.policy = Policy(options.ceiling, options.cycle_rule, options.reliability, RulesFile(self.directory.rules))
        self.config = ConfigFile(self.directory.config, self.policy, lambda: self._report_limits(options))
        self.config.refresh()
        self.ledger = Ledger(self.store, EndpointRegistry(), self.clock, tick_fd, self.loop, self.context)
        opened.callback(self.ledger.close)
        self.ledger.check_files = FileChecks(self.directory.root, (self.policy.rules, self.config)).run
        name = self.instance.name
        self.instance.number = await self.ledger.run(lambda tx: tx.db.execute(SQL.add_instance, (name,)).get)
        max_spares = 0 if self.is_power_safe else SPARE_MAX_FILES
        self.spares = SpareFiles(name, self.directory.find_mailbox, max_spares)
        opened.callback(self.spares.close)

    def _report_limits(self, options: BusOptions) -> None:
        config, reliability = self.config, self.policy.reliability
        problem = None if config.error is None else str(config.error)
        self.instance.write_report(own_limits(options, reliability, config.named, problem).encode())

    async def deregister(self) -> None:
        """Commit remaining operations and delete this instance's row.

        If the store refuses, the row stays, and another process sweeps it like the row of a dead process.
        """
        number = self.instance.number

        def work(tx: BusTransaction) -> None:
            tx.db.execute(SQL.remove_servers_of_instance, (number,))
            if not tx.db.execute(SQL.open_mail_of_instance, (number,)).fetchall():
                tx.db.execute(SQL.remove_instance, (number,))

        try:
            await self.ledger.flush()
            await self.ledger.run(work)
        except PosthouseError as failure:
            log.warning("bus_closed_without_leaving", reason=str(failure))

    def close(self) -> None:
        """Remove spare files; release databases, descriptors and the instance lock."""
        self._opened.close()


async def _open_store(path: Path, clock: Clock, on_fatal: Callable[[Fatal], None]) -> DirectStore:
    """Open bus.db on a thread: migrating waits for the write lock of other processes."""

    def open_() -> DirectStore:
        try:
            return DirectStore(path, (BUS,), clock, on_fatal=on_fatal, restart_at_pages=_RESTART_AT_PAGES)
        except apsw.CorruptError as failure:
            raise error("store_damaged", path=str(path), reason=str(failure)) from failure

    opening = asyncio.get_running_loop().run_in_executor(None, open_)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unused)
        raise


def _close_unused(opening: asyncio.Future[DirectStore]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _open_tick(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)
    return fd
