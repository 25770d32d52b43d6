"""Rebuilding the index, next to bare reading and parsing of the same files."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from posthouse.bench.bus.terms import LIMITS, Scale, median, median_ratio
from posthouse.bench.bus.waiting import fill
from posthouse.bus import Bus


async def measure(folder: Path, scale: Scale) -> dict[str, Any]:
    """Interleave bare reading and rebuilding; return files a second and the ratio."""
    bare: list[float] = []
    rebuilt: list[float] = []
    async with Bus(folder, reliability=LIMITS) as bus:
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
