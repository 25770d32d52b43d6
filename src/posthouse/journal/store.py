"""A store: one SQLite database with a journal, its writer, its readers and its checkpoints.

This is what bus, relay and daemon open. A store with FULL durability is written through the group-commit writer;
`DirectStore` gives the bus short NORMAL transactions on the calling thread. Closing releases threads, connections
and the presence lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.journal.epochs import begin_first_epoch
from posthouse.journal.read import Extent, read_extent
from posthouse.journal.restore import refuse_half_restored
from posthouse.model.clock import Clock
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import Fatal
from posthouse.sqlite.checkpoint import Checkpointer
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.direct import DirectWriter
from posthouse.sqlite.presence import Presence
from posthouse.sqlite.read_pool import ReadPool
from posthouse.sqlite.schema import Component, migrate
from posthouse.sqlite.writer import Writer

JOURNAL = Component("journal", "posthouse.journal")


def exit_process(_failure: Fatal) -> None:
    """End the process at once: what it holds in memory can no longer be made durable."""
    os._exit(Exit.BROKEN)


class _Opened:
    """The parts both kinds of store share."""

    def __init__(
        self,
        path: Path,
        components: tuple[Component, ...],
        durability: Durability,
        clock: Clock,
        on_fatal: Callable[[Fatal], None],
        vfs: str | None,
        readers: int,
    ) -> None:
        self.path = path
        self.clock = clock
        self._vfs = vfs
        self._durability = durability
        self._presence = Presence(path)
        try:
            refuse_half_restored(path)
            self._prepare((JOURNAL, *components))
            self.pool = ReadPool(path, clock, size=readers, vfs=vfs)
            self.checkpointer = Checkpointer(
                path, durability, end_stalled_reads=self.pool.end_stalled, on_fatal=on_fatal, vfs=vfs
            )
        except BaseException:
            self._presence.close()
            raise
        self.epoch = self.extent().epoch

    def extent(self) -> Extent:
        """Return epoch, horizon and head of the journal as of now."""
        return self.pool.run_blocking(read_extent)

    def _prepare(self, components: tuple[Component, ...]) -> None:
        db = open_writer(self.path, self._durability, vfs=self._vfs)
        try:
            migrate(db, self.path, components)
            begin_first_epoch(db, self.clock.wall_ns())
        finally:
            db.close()

    def _open_transaction(self) -> JournalTransaction:
        db: apsw.Connection = open_writer(self.path, self._durability, vfs=self._vfs)
        self.checkpointer.watch(db)
        return JournalTransaction(db)

    def _close_shared(self) -> None:
        self.checkpointer.close()
        self.pool.close()
        self._presence.close()


class Store(_Opened):
    """A store whose answers survive power loss, written by one group-commit writer."""

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
    ) -> None:
        super().__init__(path, components, durability, clock, on_fatal, vfs, readers)
        self.writer: Writer[JournalTransaction] = Writer(self._open_transaction, clock, str(path), on_fatal=on_fatal)

    def close(self) -> None:
        """Commit what waits and release everything."""
        self.writer.close()
        self._close_shared()

    def statistics(self) -> dict[str, Any]:
        """Return the state of writer, readers and WAL."""
        return self.writer.statistics() | self.pool.statistics() | self.checkpointer.statistics()


class DirectStore(_Opened):
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
    ) -> None:
        super().__init__(path, components, durability, clock, on_fatal, vfs, readers)
        self.writer: DirectWriter[JournalTransaction] = DirectWriter(
            self._open_transaction(), clock, str(path), on_fatal=on_fatal
        )

    def close(self) -> None:
        """Release everything."""
        self.writer.close()
        self._close_shared()
