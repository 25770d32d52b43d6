"""The floor: the bare file steps of one message, without any bus.

Create and write, rename, rename, unlink: what a Maildir that removes its files cannot do without. Run between the
rounds of a measurement with files of the size the bus writes, in the directories of a mailbox of the measured bus
(failed/ in the place of new/, which the bus watches): ext4 takes the inodes of a directory's files from one region of
the disk, and only in the same region both see the same disk.

An ext4 without a journal looks past every inode that was deleted in the last minutes, so that the floor slows itself
down with every file it removes. That would flatter the bus, which writes over its files instead. So the floor's rounds
are short, and a report also tells the ratio to the fastest of them, and to the steps with a file that is written over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from posthouse.bench.bus.terms import median
from posthouse.bus.directory import endpoint_hash

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OVERWRITE = os.O_WRONLY | os.O_CLOEXEC
_ROUND = 100  # messages: about 5 ms, and few enough that those removed do not slow down the rounds to come


class Floor:
    """The steps between the directories of one mailbox."""

    def __init__(self, root: Path, subject: str, file_bytes: int) -> None:
        folder = root / "mailboxes" / endpoint_hash(subject)
        self.data = b"x" * file_bytes
        self._tmp, self._new, self._cur = (f"{folder / name}/" for name in ("tmp", "failed", "cur"))
        self._written = 0
        #: messages a second of every round: created and removed, and written over
        self.rates: list[float] = []
        self.reusing_rates: list[float] = []

    def run(self) -> None:
        """Measure one round of each kind."""
        self.rates.append(self._rate())
        self.reusing_rates.append(self._reusing_rate())

    def report(self) -> dict[str, Any]:
        return {
            "floor_per_s": round(median(self.rates)),
            "fastest_floor_per_s": round(max(self.rates)),
            "reusing_floor_per_s": round(median(self.reusing_rates)),
        }

    def compare(self, name: str, rates: Sequence[float]) -> dict[str, Any]:
        """Return a rate and what it is of the floor, round by round, and of the other two."""
        ratios = [mine / other for mine, other in zip(rates, self.rates, strict=True)]
        reusing = [mine / other for mine, other in zip(rates, self.reusing_rates, strict=True)]
        prefix = f"{name}_" if name else ""
        return {
            f"{prefix}ratio": round(median(ratios), 3),
            f"{prefix}ratio_to_fastest_floor": round(median(rates) / max(self.rates), 3),
            f"{prefix}ratio_to_reusing_floor": round(median(reusing), 3),
        }

    def _rate(self) -> float:
        start = perf_counter()
        for number in range(self._written, self._written + _ROUND):
            name = f"floor-{number:020d}"
            fd = os.open(self._tmp + name, _CREATE, 0o600)
            os.write(fd, self.data)
            os.close(fd)
            os.rename(self._tmp + name, self._new + name)  # noqa: PTH104 - the bare steps
            os.rename(self._new + name, self._cur + name)  # noqa: PTH104 - the bare steps
            os.unlink(self._cur + name)  # noqa: PTH108 - the bare steps
        self._written += _ROUND
        return _ROUND / (perf_counter() - start)

    def _reusing_rate(self) -> float:
        spare = f"{self._tmp}floor-spare"
        os.close(os.open(spare, _CREATE, 0o600))
        start = perf_counter()
        for number in range(_ROUND):
            name = f"floor-{number:020d}"
            fd = os.open(spare, _OVERWRITE)
            os.write(fd, self.data)
            os.close(fd)
            os.rename(spare, self._new + name)  # noqa: PTH104 - the bare steps
            os.rename(self._new + name, self._cur + name)  # noqa: PTH104 - the bare steps
            os.rename(self._cur + name, spare)  # noqa: PTH104 - the bare steps
        rate = _ROUND / (perf_counter() - start)
        os.unlink(spare)  # noqa: PTH108 - as above
        return rate
