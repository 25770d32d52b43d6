"""A store: one SQLite database with a journal, its writer, its readers and its checkpoints.

This is what bus, relay and daemon open. A store with FULL durability is written through the group-commit writer;
`DirectStore` gives the bus short NORMAL transactions on the calling thread. Closing releases threads, connections
and the presence lock. A disk that fails, under whichever thread, ends all writing; `on_fatal` is then told once,
on the thread that found it: it must neither block nor close the store there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from posthouse.journal.append import JournalTransaction
from posthouse.journal.cursor import Extent
from posthouse.journal.read import begin_first_epoch, read_extent
from posthouse.model.clock import Clock
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import Fatal
from posthouse.sqlite.checkpoint import Checkpointer
from posthouse.sqlite.connection import Durability, open_writer, safe_path
from posthouse.sqlite.read_pool import ReadPool
from posthouse.sqlite.schema import Component, migrate, refuse_unknown
from posthouse.sqlite.store_lock import StoreLock, refuse_half_restored
from posthouse.sqlite.transaction import DirectWriter
from posthouse.sqlite.writer import Writer

JOURNAL = Component("journal", "posthouse.journal")


def exit_process(_failure: Fatal) -> None:
    """End the process at once: what it holds in memory can no longer be made durable."""
    os._exit(Exit.BROKEN)


class _Opened:
    """The parts both kinds of store share, closed in the reverse order of their opening."""

    writer: Writer[JournalTransaction] | DirectWriter[JournalTransaction]

    def __init__(
        self,
        path: Path,
        components: tuple[Component, ...],
        durability: Durability,
        clock: Clock,
        on_fatal: Callable[[Fatal], None],
        vfs: str | None,
        readers: int,
        restart_at_pages: int | None = None,
    ) -> None:
        self.path = safe_path(path)
        self.clock = clock
        self._vfs = vfs
        self._durability = durability
        self._restart_at_pages = restart_at_pages
        self._on_fatal = on_fatal
        with ExitStack() as opened:
            opened.callback(StoreLock(self.path).close)
            self._prepare((JOURNAL, *components))
            self.pool = ReadPool(self.path, clock, size=readers, vfs=vfs)
            # Closed last: a read-only connection that closes last would leave its WAL behind.
            self.checkpointer = self._start_checkpoints()
            opened.callback(self.checkpointer.close)
            opened.callback(self.pool.close)
            self.epoch = self.extent().epoch
            self.writer = self._open_writer()
            opened.callback(self.writer.close)
            self._opened = opened.pop_all()

    def extent(self) -> Extent:
        """Return epoch, horizon and head of the journal as of now."""
        return self.pool.run_blocking(read_extent)

    def close(self) -> None:
        """Commit what waits and release everything; a second call does nothing."""
        self._opened.close()

    def statistics(self) -> dict[str, Any]:
        """Return the state of readers and WAL."""
        return self.pool.statistics() | self.checkpointer.statistics()

    def _open_writer(self) -> Writer[JournalTransaction] | DirectWriter[JournalTransaction]:
        raise NotImplementedError

    def _prepare(self, components: tuple[Component, ...]) -> None:
        refuse_half_restored(self.path)
        refuse_unknown(self.path, components, vfs=self._vfs)
        db = open_writer(self.path, self._durability, vfs=self._vfs)
        try:
            migrate(db, self.path, components)
            begin_first_epoch(db, self.clock.wall_ns())
        finally:
            db.close()

    def _start_checkpoints(self) -> Checkpointer:
        return Checkpointer(
            self.path,
            self._durability,
            end_stalled_reads=self.pool.end_stalled,
            on_fatal=self._fail,
            restart_at_pages=self._restart_at_pages,
            vfs=self._vfs,
        )

    def _open_transaction(self) -> JournalTransaction:
        db = open_writer(self.path, self._durability, vfs=self._vfs)
        self.checkpointer.watch(db)
        return JournalTransaction(db)

    def _fail(self, fatal: Fatal) -> None:
        """End all writing because a checkpoint found that the disk failed."""
        if hasattr(self, "writer"):  # else it is still being opened, and on_fatal is all there is to tell
            self.writer.refuse(fatal)
        self._on_fatal(fatal)


class Store(_Opened):
    """A store whose answers survive power loss, written by one group-commit writer."""

    writer: Writer[JournalTransaction]

    def __init__(
        self,
        path: Path,
        components: tuple[Component, ...],
        clock: Clock,
        *,
        durability: Durability = Durability.FULL,
        on_fatal: Callable[[Fatal], None] = exit_process,
        vfs: str | None = None,
        readers: int = 4,
        restart_at_pages: int | None = None,
    ) -> None:
        """Open the store; `restart_at_pages` is the length of the WAL at which it is copied and begun anew."""
        super().__init__(path, components, durability, clock, on_fatal, vfs, readers, restart_at_pages)

    def _open_writer(self) -> Writer[JournalTransaction]:
        return Writer(self._open_transaction, self.clock, str(self.path), on_fatal=self._on_fatal)

    def statistics(self) -> dict[str, Any]:
        """Return the state of writer, readers and WAL."""
        return self.writer.statistics() | super().statistics()


class DirectStore(_Opened):
    """A store with short transactions on the calling thread; several processes may share it."""

    writer: DirectWriter[JournalTransaction]

    def __init__(
        self,
        path: Path,
        components: tuple[Component, ...],
        clock: Clock,
        *,
        durability: Durability = Durability.NORMAL,
        on_fatal: Callable[[Fatal], None],
        vfs: str | None = None,
        readers: int = 2,
        restart_at_pages: int | None = None,
    ) -> None:
        """Open the store; `restart_at_pages` is the length of the WAL at which it is copied and begun anew."""
        super().__init__(path, components, durability, clock, on_fatal, vfs, readers, restart_at_pages)

    def _open_writer(self) -> DirectWriter[JournalTransaction]:
        return DirectWriter(self._open_transaction(), self.clock, str(self.path), on_fatal=self._on_fatal)

    def statistics(self) -> dict[str, Any]:
        """Return the state of writer, readers and WAL."""
        return {"state": self.writer.state} | super().statistics()
