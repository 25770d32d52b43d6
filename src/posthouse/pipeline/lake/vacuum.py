"""Removing files that no commit names: what killed runs left, and what replaced tables no longer need.

Only the holder of the lake may do this. A file younger than the grace stays: a reader that began before the last
commit may still want it.
"""

from __future__ import annotations

import os
from pathlib import Path

from posthouse.model.clock import Clock
from posthouse.pipeline.lake.delta import Delta

GRACE_S = 3_600.0  # longer than any query of a report


def vacuum(table: Delta, clock: Clock, grace_s: float = GRACE_S) -> int:
    """Delete the orphans of one table and return how many there were."""
    if not table.exists:
        return 0
    named = {file.path for file in table.files()}
    before_ns = clock.wall_ns() - round(grace_s * 1e9)
    removed = 0
    for directory, names, files in os.walk(table.path, topdown=False):
        place = Path(directory)
        if "_delta_log" in place.relative_to(table.path).parts:
            continue
        for name in files:
            path = place / name
            if path.relative_to(table.path).as_posix() not in named and path.stat().st_mtime_ns < before_ns:
                path.unlink()
                removed += 1
        if place != table.path and names != ["_delta_log"] and not any(place.iterdir()):
            _remove_old_directory(place, before_ns)
    return removed


def _remove_old_directory(place: Path, before_ns: int) -> None:
    if place.stat().st_mtime_ns < before_ns:
        place.rmdir()
