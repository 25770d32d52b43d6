"""A store: one SQLite database with a journal, its writer, its read pool and its checkpoints.

Bus, relay and daemon open their databases through this module. A `Store` has FULL durability and is written by the
group-commit writer; a `DirectStore` gives the bus short NORMAL transactions on the calling thread. Closing releases
threads, connections and the store lock. When a disk fails, all writing ends, and the thread that notices it calls
`on_fatal` once; the callback must neither block nor close the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from posthouse.journal.append import SQL, JournalTransaction
from posthouse.journal.cursor import Extent
from posthouse.journal.read import begin_first_epoch, read_extent
from posthouse.model.clock import Clock
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import Fatal
from posthouse.sqlite.checkpoint import Checkpointer
from posthouse.sqlite.connection import Durability, open_writer, safe_path
from posthouse.sqlite.read_pool import ReadPool
from posthouse.sqlite.schema import check_known_schema, migrate
from posthouse.sqlite.store_lock import StoreLock, refuse_half_restored
from posthouse.sqlite.transaction import DirectWriter
from posthouse.storage.sql_files import Component
from posthouse.storage.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS, Writer

JOURNAL = Component("journal", "posthouse.journal")


def exit_process(_failure: Fatal) -> None:
    """End the process at once: the state that it holds in memory can never become durable."""
    os._exit(Exit.BROKEN)


class StoreWriter(Protocol):
    """The life cycle that both kinds of writer share."""

    def refuse(self, fatal: Fatal) -> None:
        """Fail every later call with `fatal`."""
        ...

    def close(self) -> None:
        """Commit pending items and close the connection."""
        ...

    def statistics(self) -> dict[str, Any]:
        """Return the state, and the counters if there are any."""
        ...


WriterT = TypeVar("WriterT", bound=StoreWriter)
OpenTransaction = Callable[[], JournalTransaction]


class _OpenStore(Generic[WriterT]):
    """The parts of a store around a writer that `make_writer` creates; closed in the reverse order of opening."""

    def __init__(
        self,
        path: Path,
        components: tuple[Component, ...],
        clock: Clock,
        make_writer: Callable[[OpenTransaction, str], WriterT],
        *,
        durability: Durability,
        on_fatal: Callable[[Fatal], None],
        vfs: str | None,
        readers: int,
        restart_at_pages: int | None,
        may_shrink: bool = False,
    ) -> None:
        self.path = safe_path(path)
        self.clock = clock
        self._vfs = vfs
        self._durability = durability
        self._on_fatal = on_fatal
        self._refuse_writes: Callable[[Fatal], None] | None = None  # None until the writer is open
        with ExitStack() as opened:
            opened.callback(StoreLock(self.path).close)
            self._prepare((JOURNAL, *components), may_shrink=may_shrink)
            self.pool = ReadPool(self.path, clock, size=readers, vfs=vfs)
            # The checkpointer closes after the pool: a read-only connection that closes last leaves its WAL behind.
            self.checkpointer = self._start_checkpoints(restart_at_pages)
            opened.callback(self.checkpointer.close)
            opened.callback(self.pool.close)
            self.epoch = self.extent().epoch
            self.writer = make_writer(self._open_transaction, str(self.path))
            self._refuse_writes = self.writer.refuse
            opened.callback(self.writer.close)
            self._opened = opened.pop_all()

    def extent(self) -> Extent:
        """Return epoch, horizon and head of the journal as of now."""
        return self.pool.run_blocking(read_extent)

    def close(self) -> None:
        """Commit pending items and release everything; a second call does nothing."""
        self._opened.close()

    def statistics(self) -> dict[str, Any]:
        """Return the state of writer, readers and WAL."""
        return self.writer.statistics() | self.pool.statistics() | self.checkpointer.statistics()

    def _prepare(self, components: tuple[Component, ...], *, may_shrink: bool) -> None:
        refuse_half_restored(self.path)
        check_known_schema(self.path, components, vfs=self._vfs)
        db = open_writer(self.path, self._durability, vfs=self._vfs, may_shrink=may_shrink)
        try:
            migrate(db, self.path, components)
            begin_first_epoch(db, self.clock.wall_ns())
        finally:
            db.close()

    def _start_checkpoints(self, restart_at_pages: int | None) -> Checkpointer:
        return Checkpointer(
            self.path,
            self._durability,
            end_stalled_reads=self.pool.end_stalled,
            on_fatal=self._fail,
            restart_at_pages=restart_at_pages,
            vfs=self._vfs,
        )

    def _open_transaction(self) -> JournalTransaction:
        db = open_writer(self.path, self._durability, vfs=self._vfs)
        self.checkpointer.watch(db)
        return JournalTransaction(db)

    def _fail(self, fatal: Fatal) -> None:
        """End all writing because a checkpoint found that the disk failed."""
        if self._refuse_writes is not None:
            self._refuse_writes(fatal)
        self._on_fatal(fatal)


def _write_back(tx: JournalTransaction) -> None:
    """Write a page of the store and leave its rows as they are."""
    for difference in (1, -1):
        tx.db.execute(SQL.add_bytes, (difference,))


class Store(_OpenStore[Writer[JournalTransaction]]):
    """A store whose commits survive power loss, written by one group-commit writer."""

    async def probe(self) -> None:
        """Write to the store; raises an error if it cannot be written."""
        await self.writer.run(_write_back)

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
        max_items: int = MAX_WAITING_ITEMS,
        max_bytes: int = MAX_WAITING_BYTES,
        may_shrink: bool = False,
    ) -> None:
        """Open the store.

        A new one with `may_shrink` can give free pages back to the file system while it is in use. A WAL of
        `restart_at_pages` is copied into the database and restarted. At most `max_items` of together `max_bytes` wait
        for the writer; beyond that it raises store_busy.
        """
        super().__init__(
            path,
            components,
            clock,
            lambda open_transaction, name: Writer(
                open_transaction, clock, name, on_fatal=on_fatal, max_items=max_items, max_bytes=max_bytes
            ),
            durability=durability,
            on_fatal=on_fatal,
            vfs=vfs,
            readers=readers,
            restart_at_pages=restart_at_pages,
            may_shrink=may_shrink,
        )


class DirectStore(_OpenStore[DirectWriter[JournalTransaction]]):
    """A store with short transactions on the calling thread; several processes may share it."""

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
        """Open the store; a WAL of `restart_at_pages` is copied into the database and restarted."""
        super().__init__(
            path,
            components,
            clock,
            lambda open_transaction, name: DirectWriter(open_transaction(), clock, name, on_fatal=on_fatal),
            durability=durability,
            on_fatal=on_fatal,
            vfs=vfs,
            readers=readers,
            restart_at_pages=restart_at_pages,
        )
