"""Stores with a journal that grows, for what the pipeline reads."""

from __future__ import annotations

from pathlib import Path

from posthouse.files import private_dir
from posthouse.journal.append import Fact, JournalTransaction
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.journal.restore import restore_store
from posthouse.journal.store import JOURNAL, Store
from posthouse.model.clock import FakeClock
from posthouse.relay.store.sqlite.store import RELAY
from posthouse.sqlite.backup import backup_store

_HOUR_S = 3_600


class GrowingStore:
    """A relay's store of which only the journal is used; closed between writes, as another process would see it."""

    def __init__(self, folder: Path) -> None:
        self.path = private_dir(folder) / "relay.db"
        self.clock = FakeClock()
        self.written = 0
        self.grow(0)

    def grow(self, count: int) -> None:
        """Append so many facts, an hour after the ones before."""
        self.clock.advance(_HOUR_S)
        store = self._open()
        try:
            if count:
                store.writer.run_blocking(lambda tx: self._append(tx, count))
        finally:
            store.close()

    def records(self) -> list[Record]:
        """Return everything the journal holds."""
        store = self._open()
        try:
            return store.pool.run_blocking(lambda db: read_after(db, 0, 10_000_000))
        finally:
            store.close()

    def epoch(self) -> str:
        store = self._open()
        try:
            return store.epoch
        finally:
            store.close()

    def back_up(self, name: str) -> Path:
        """Copy the store beside itself."""
        target = self.path.with_name(name)
        backup_store(self.path, target)
        return target

    def restore(self, backup: Path) -> str:
        """Put a backup in the store's place and return the new epoch."""
        self.clock.advance(_HOUR_S)
        return restore_store(backup, self.path, (JOURNAL, RELAY), self.clock)

    def _append(self, tx: JournalTransaction, count: int) -> None:
        facts: list[Fact] = []
        for _ in range(count):
            self.written += 1
            facts.append(_fact(self.written))
        tx.append_many(facts)

    def _open(self) -> Store:
        return Store(self.path, (RELAY,), self.clock)


def _fact(number: int) -> Fact:
    if number % 3 == 0:
        body = f'{{"code":"rate_limited","key":"k{number % 7}","count":{number % 5 + 1},"minute":{number}}}'
        return "refused", "main", None, None, body
    return "config.changed", None, f"ed25519:{number % 11:064x}", f"r{number}", f'{{"changes":{{"é\\n":"{number}"}}}}'
