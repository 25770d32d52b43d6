"""A store to read: a relay's file with many records of one size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from posthouse.bench.pipeline.terms import ROW_BYTES
from posthouse.files import private_dir
from posthouse.journal.append import Fact, JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.clock import FakeClock
from posthouse.relay.store.sqlite.store import RELAY

_PAGE = 20_000
_NODE = "ed25519:" + "ab" * 32
_FIXED_BYTES = len("message.accepted") + len("main") + len(_NODE) + 64 + 16  # all columns but the body


def make_store(folder: Path, rows: int) -> Path:
    """Make a relay's store whose journal has so many records of 256 bytes, over some days."""
    path = private_dir(folder) / "relay.db"
    clock = FakeClock()
    store = Store(path, (RELAY,), clock)
    try:
        for first in range(0, rows, _PAGE):
            clock.advance(300)
            facts = list(_facts(first, min(_PAGE, rows - first)))
            store.writer.run_blocking(lambda tx, facts=facts: _append(tx, facts))  # type: ignore[misc]
    finally:
        store.close()
    return path


def _append(tx: JournalTransaction, facts: list[Fact]) -> None:
    tx.append_many(facts)


def _facts(first: int, count: int) -> Iterator[Fact]:
    frame = '{"client_message_id":"","size":1234}'
    padding = ROW_BYTES - _FIXED_BYTES - len(frame)
    for number in range(first, first + count):
        body = frame.replace('""', f'"{number:0{padding}d}"', 1)
        yield "message.accepted", "main", _NODE, f"{number:064x}", body
