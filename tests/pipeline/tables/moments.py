"""Real histories as a lake meets them: the same stores at several moments, each cut at random.

The product itself has written the stores. What a store held at an earlier moment is its journal up to some seq: rows
are never changed, so a copy without the later ones is what a reader would have seen then. After a restore the store
that was lost is a source of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posthouse.files import private_dir
from posthouse.journal.read import read_after
from posthouse.keys import keyfile
from posthouse.model.clock import system_clock
from posthouse.pipeline.demo.demo_history import make_history_async
from posthouse.relay.ops.maintenance import backup_relay, restore_relay
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import Durability, open_reader, open_writer
from tests.client.house import open_house
from tests.pipeline.audit.activity import write_pinch
from tests.pipeline.audit.daemons import write_letters
from tests.pipeline.audit.test_restored import live

RUNS = 3


@dataclass(frozen=True)
class Moments:
    """What the sources were, run by run, and what a lake that starts last has to read to know as much."""

    runs: Sequence[Sequence[Path]]
    everything: Sequence[Path]


async def write_moments(folder: Path, seed: int, messages: int) -> Moments:
    """Several histories side by side, as one lake reads them."""
    found = [await write(private_dir(folder / write.__name__), seed, messages) for write in _WRITERS]
    runs = [[store for each in found for store in each.runs[number]] for number in range(RUNS)]
    return Moments(runs, [store for each in found for store in each.everything])


async def write_restored(folder: Path, seed: int, messages: int) -> Moments:
    """A week of a relay and a bus; then more life at the relay, some of which a restore loses, and life after it.

    A run read some of the lost rows before. The restore precedes the last run, which therefore replaces every table.
    """
    luck = random.Random(f"restored {seed}")
    made = await make_history_async(folder / "week", seed, agents=4, messages=messages)
    keyfile.create(made.relay_dir / "key.json")
    backup = folder / "backup.db"
    backup_relay(made.relay_db, backup)
    await write_pinch(made.relay_dir, 3)
    await _live(made.directory, "lost")
    fork, head = head_of(backup), head_of(made.relay_db)
    lost = cut_store(made.relay_db, luck.randrange(fork + 1, head), folder / "lost.db")
    restore_relay(backup, made.relay_db, system_clock())
    await _live(made.directory, "after")
    await write_pinch(made.relay_dir, 3)
    second = cut_store(made.relay_db, luck.randrange(fork + 1, head_of(made.relay_db)), folder / "second.db")
    buses = cut_anywhere([made.bus_db], luck, folder / "buses")
    final = [made.relay_db, made.bus_db]
    return Moments([[lost, *buses[0]], [second, *buses[1]], final], [lost, *final])


async def _live(directory: Path, round_: str) -> None:
    async with open_house(directory) as house:
        await live(house, round_)


async def write_daemons(folder: Path, seed: int, _messages: int) -> Moments:
    """Letters between two daemons at another relay."""
    luck = random.Random(f"daemons {seed}")
    relay, outbox, _inbox, _outbox, inbox = await write_letters(private_dir(folder / "letters"))
    final = [relay, outbox, inbox]
    return Moments([*cut_anywhere(final, luck, folder / "cut"), final], final)


_WRITERS = (write_restored, write_daemons)


def cut_anywhere(stores: Sequence[Path], luck: random.Random, folder: Path, times: int = RUNS - 1) -> list[list[Path]]:
    """Return the stores as they were at earlier moments, each store cut by itself."""
    private_dir(folder)
    moments: list[list[Path]] = [[] for _ in range(times)]
    for number, store in enumerate(stores):
        places = sorted(luck.sample(range(1, head_of(store)), times))
        for moment, place in enumerate(places):
            moments[moment].append(cut_store(store, place, folder / f"{number}-{moment}.db"))
    return moments


def cut_store(store: Path, head: int, target: Path) -> Path:
    """Copy a store without the records above a seq."""
    backup_store(store, target)
    db = open_writer(target, Durability.FULL)
    db.execute("DELETE FROM journal WHERE seq > ?", (head,))
    db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'journal'", (head,))
    db.close()
    assert head_of(target) == head
    return target


def head_of(store: Path) -> int:
    """Return the last seq of a store."""
    db = open_reader(store)
    try:
        return max(record.seq for record in read_after(db, 0, 10_000_000))
    finally:
        db.close()
