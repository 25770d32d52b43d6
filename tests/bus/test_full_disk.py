"""A disk without room: a publish that cannot be stored says so, loses nothing, and works again when there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from posthouse.model.errors import PosthouseError
from tests.bus.counters import depth_counter
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder

_MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(disk)], capture_output=True, timeout=30
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not allow mounting a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=30)


@pytest.fixture
async def cramped(small_disk: Path) -> AsyncIterator[House]:
    house = House(small_disk / "bus")
    yield house
    await house.close()


def fill(disk: Path) -> Path:
    """Use up every byte that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return filler


async def test_publish_on_a_full_disk_raises_and_works_again_when_there_is_room(
    cramped: House, small_disk: Path
) -> None:
    bus = await cramped.bus(reliability=reliability(circuitBreaker={"failureThreshold": 1_000}))
    await bus.register_endpoint("a.b")
    accepted = [(await bus.publish("a.b", "before", from_="c")).message_id]
    filler = fill(small_disk)
    for _ in range(3):
        with contextlib.suppress(PosthouseError):
            result = await bus.publish("a.b", {"text": "y" * 8_000}, from_="c")
            assert result.delivered_to == 0
    filler.unlink()
    accepted.append((await bus.publish("a.b", "after", from_="c")).message_id)
    assert [envelope.id for envelope in await bus.read_inbox("a.b", 100)] == accepted
    assert depth_counter(cramped.root, "a.b") == 2
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(2) == ["before", "after"]


async def test_every_publish_that_returned_until_the_disk_was_full_is_there(cramped: House, small_disk: Path) -> None:
    bus = await cramped.bus(reliability=reliability(backpressure={"maxMailboxSize": 1_000_000}))
    await bus.register_endpoint("a.b")
    accepted: list[str] = []
    failed = 0
    for _ in range(2_000):
        try:
            result = await bus.publish("a.b", {"text": "z" * 4_000}, from_="c")
        except PosthouseError:
            failed += 1
            if failed > 20:
                break
            continue
        if result.delivered_to:
            accepted.append(result.message_id)
        else:
            failed += 1
    assert failed > 0
    assert len(accepted) > 50
    stored = {envelope.id for envelope in await bus.read_inbox("a.b", 10_000)}
    assert set(accepted) <= stored
    assert cramped.mailbox("a.b").names("tmp") == []
