"""Facts to write in tests of the journal, and how to read them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posthouse.journal.append import JournalTransaction
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.journal.store import DirectStore, Store
from posthouse.model.clock import Clock, FakeClock
from posthouse.model.errors import Fatal

Work = Callable[[JournalTransaction], int]


def note(ref: str, padding: int = 0) -> Work:
    """Return work that appends one fact about `ref`."""

    def work(tx: JournalTransaction) -> int:
        return tx.append("config.changed", ref=ref, body={"changes": {"padding": "x" * padding}})

    return work


def failing(ref: str) -> Work:
    """Return work that appends one fact and then fails."""

    def work(tx: JournalTransaction) -> int:
        note(ref)(tx)
        raise ValueError(ref)

    return work


def all_records(store: Store | DirectStore) -> list[Record]:
    return store.pool.run_blocking(lambda db: read_after(db, 0, 1_000_000))


def refs(store: Store | DirectStore) -> list[str | None]:
    return [record.ref for record in all_records(store)]


@contextmanager
def opened(path: Path, clock: Clock | None = None, **options: Any) -> Iterator[Store]:
    """Open a store that fails the test, instead of ending the process, when the disk fails."""
    store = Store(path, (), clock or FakeClock(), **({"on_fatal": _unexpected} | options))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened_directly(path: Path, clock: Clock | None = None, **options: Any) -> Iterator[DirectStore]:
    store = DirectStore(path, (), clock or FakeClock(), **({"on_fatal": _unexpected} | options))
    try:
        yield store
    finally:
        store.close()


def _unexpected(failure: Fatal) -> None:
    raise AssertionError(f"the disk failed: {failure}")
