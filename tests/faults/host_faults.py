"""What goes wrong with a machine, on demand: its disk is full, its clock is set."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from posthouse.model.limits import SECOND_NS

_DISK_BYTES = 48 << 20


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Use up every byte of a small file system for a while."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def small_disks(folder: Path, names: Sequence[str]) -> Iterator[bool]:
    """Make folders with a small file system each; False where this process may not mount one."""
    mounted: list[Path] = []
    try:
        for name in names:
            disk = folder / name
            disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=0700", "tmpfs", str(disk)]
            if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
                break
            mounted.append(disk)
        yield len(mounted) == len(names)
    finally:
        for disk in mounted:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


def write_offset(path: Path, by_s: int) -> None:
    """Let the processes whose POSTHOUSE_TEST_CLOCK is this file have another wall time."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"wall_offset_ns": by_s * SECOND_NS}))
    fresh.rename(path)
