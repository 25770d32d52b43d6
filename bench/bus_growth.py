"""Costs of the bus that must not grow with waiting messages, files to index, subscriptions or publishes.

Before each round into a full and an empty mailbox as many messages are acknowledged as it publishes, so that neither
round creates files, whose cost depends on earlier deletions in the directory. Memory is measured with files in
/dev/shm if there is room: this measures no time, and deleting a million files on a disk can take hours.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from bench.bus_throughput import Counted, publish_together
from bench.comparison import median, median_ratio
from bench.scales import BUS_LIMITS, IN_FLIGHT, PAYLOAD, SENDER, SUBJECT, BusScale
from posthouse.bus import Bus, Retention
from posthouse.model.subjects import PatternTrie

_BATCH = 200
_FULL, _EMPTY, _GROWING = "waiting.full", "waiting.empty", "waiting.growing"


async def measure_waiting(folder: Path, scale: BusScale) -> dict[str, Any]:
    """Alternate batches into a full and an empty mailbox, first while both grow, then after acknowledgements."""
    async with Bus(folder, reliability=BUS_LIMITS) as bus:
        for subject in (_FULL, _EMPTY):
            await bus.register_endpoint(subject)
        await fill(bus, _FULL, scale.waiting)
        growing = await _grow(bus, scale.rounds)
        empty, full = await _alternate(bus, scale.rounds * 2)
    return {
        "waiting": scale.waiting,
        "publish_empty_per_s": round(median(empty)),
        "publish_full_per_s": round(median(full)),
        "ratio": median_ratio(full, empty),
        "growing_empty_per_s": round(median(growing[0])),
        "growing_full_per_s": round(median(growing[1])),
        "growing_ratio": median_ratio(growing[1], growing[0]),
    }


async def _grow(bus: Bus, rounds: int) -> tuple[list[float], list[float]]:
    """Publish into new mailboxes and the full one; return the rates of both."""
    empty: list[float] = []
    full: list[float] = []
    for number in range(rounds):
        fresh = f"{_GROWING}{number}"
        await bus.register_endpoint(fresh)
        empty.append(await _rate(bus, fresh))
        full.append(await _rate(bus, _FULL))
    return empty, full


async def _alternate(bus: Bus, rounds: int) -> tuple[list[float], list[float]]:
    """Acknowledge and publish a batch in both mailboxes, in alternating order."""
    rates: dict[str, list[float]] = {_EMPTY: [], _FULL: []}
    await fill(bus, _EMPTY, _BATCH)
    for number in range(rounds):
        for subject in (_EMPTY, _FULL) if number % 2 else (_FULL, _EMPTY):
            await _acknowledge(bus, subject)
            await bus.metrics()
            rates[subject].append(await _rate(bus, subject))
    return rates[_EMPTY], rates[_FULL]


async def fill(bus: Bus, subject: str, count: int) -> None:
    """Publish `count` messages with 64 in flight."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await bus.publish(subject, PAYLOAD, from_=SENDER)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def _acknowledge(bus: Bus, subject: str) -> None:
    """Acknowledge a batch of the oldest messages."""
    for envelope in await bus.read_inbox(subject, _BATCH):
        await bus.ack(subject, envelope.id)


async def _rate(bus: Bus, subject: str) -> float:
    start = perf_counter()
    for _ in range(_BATCH):
        await bus.publish(subject, PAYLOAD, from_=SENDER)
    return _BATCH / (perf_counter() - start)


async def measure_rebuild(folder: Path, scale: BusScale) -> dict[str, Any]:
    """Alternate bare reading and rebuilding; return files per second and the ratio."""
    bare: list[float] = []
    rebuilt: list[float] = []
    async with Bus(folder, reliability=BUS_LIMITS) as bus:
        for number in range(10):
            await bus.register_endpoint(f"rebuild.n{number}")
            await fill(bus, f"rebuild.n{number}", scale.rebuild_files // 10)
        for _ in range(max(2, scale.rounds // 3)):
            bare.append(_read_all(folder, scale.rebuild_files))
            start = perf_counter()
            await bus.rebuild_index()
            rebuilt.append(scale.rebuild_files / (perf_counter() - start))
    return {
        "files": scale.rebuild_files,
        "bare_files_per_s": round(median(bare)),
        "rebuild_files_per_s": round(median(rebuilt)),
        "ratio": median_ratio(rebuilt, bare),
    }


def _read_all(folder: Path, expected: int) -> float:
    decode = msgspec.json.Decoder().decode
    start = perf_counter()
    count = 0
    for path in (folder / "mailboxes").glob("*/new/*"):
        decode(path.read_bytes())
        count += 1
    if count != expected:
        raise AssertionError(f"{count} files instead of {expected}")
    return count / (perf_counter() - start)


FEW, MANY = 100, 10_000
_LOOKUPS = 5_000


def measure_matching(scale: BusScale) -> dict[str, Any]:
    """Alternate look-ups in a small and a large trie; return microseconds per look-up and the ratio."""
    few, many = _trie(FEW), _trie(MANY)
    small: list[float] = []
    large: list[float] = []
    for _ in range(scale.rounds):
        small.append(_microseconds(few))
        large.append(_microseconds(many))
    return {
        "subscriptions": MANY,
        "match_100_us": round(median(small), 3),
        "match_10000_us": round(median(large), 3),
        "ratio": median_ratio(large, small),
    }


def _trie(count: int) -> PatternTrie[int]:
    """Return a trie with four kinds of patterns in equal parts, spread over teams and agents."""
    trie: PatternTrie[int] = PatternTrie()
    for number in range(count):
        team, agent = f"team{number % 97}", f"agent{number}"
        pattern = (f"{team}.{agent}.in", f"{team}.*.log{number}", f"{team}.{agent}.>", f"*.{agent}.in")[number % 4]
        trie.add(pattern, number)
    return trie


def _microseconds(trie: PatternTrie[int]) -> float:
    subjects = [f"team{number % 97}.agent{number}.in" for number in range(FEW)]
    start = perf_counter()
    for number in range(_LOOKUPS):
        trie.match(subjects[number % FEW])
    return (perf_counter() - start) / _LOOKUPS * 1e6


_MIB = 1 << 20
_PARTS = 20
_MEMORY_DISK = Path("/dev/shm")
_ROOM_BYTES = 2_048 * _MIB  # the most that a million messages and their journal take
_JOURNAL_BYTES = 64 * _MIB


async def measure_memory(folder: Path, scale: BusScale) -> dict[str, Any]:
    """Publish and handle in equal parts; compare the memory after the first tenth with that at the end."""
    with _memory_folder(folder) as root:
        resident = await _run(root / "bus", scale.memory_publishes // _PARTS)
    warm = resident[_PARTS // 10]
    return {
        "publishes": scale.memory_publishes // _PARTS * _PARTS,
        "warm_mib": round(warm / _MIB, 1),
        "end_mib": round(resident[-1] / _MIB, 1),
        "growth_mib": round((max(resident[-3:]) - warm) / _MIB, 1),
        "curve_mib": [round(value / _MIB, 1) for value in resident],
    }


async def _run(folder: Path, part: int) -> list[int]:
    """Return the resident memory after each part."""
    counted = Counted()
    resident: list[int] = []
    async with Bus(folder, reliability=BUS_LIMITS, retention=Retention(max_bytes=_JOURNAL_BYTES)) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.subscribe(SUBJECT, counted)
        for _ in range(_PARTS):
            counted.expect(part)
            await publish_together(bus, part)
            await counted.wait()
            await bus.session.housekeeping.prune()
            gc.collect()
            resident.append(resident_bytes())
    return resident


@contextmanager
def _memory_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder in memory if there is room, else the given one on the disk."""
    if not has_room(_MEMORY_DISK):
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=_MEMORY_DISK) as root:
        yield Path(root)


def has_room(disk: Path) -> bool:
    """Return True if the directory exists, is writable and has room for a million messages."""
    if not os.access(disk, os.W_OK):
        return False
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize >= _ROOM_BYTES


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not report resident memory")
