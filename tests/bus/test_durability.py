"""What "process" and "power" promise, seen from the system calls a publish makes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.model.errors import PosthouseError
from tests.bus.house import House


class Syncs:
    """The files and directories that were made durable."""

    def __init__(self) -> None:
        self.paths: list[Path] = []


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Syncs]:
    """Remember what os.fsync and os.fdatasync were called for, and still do it."""
    seen = Syncs()
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def remembering(fd: int, real: object = real) -> None:
            seen.paths.append(Path(f"/proc/self/fd/{fd}").readlink())
            real(fd)  # type: ignore[operator]

        monkeypatch.setattr(os, name, remembering)
    yield seen


async def test_power_durability_syncs_file_and_directory_before_publish_returns(house: House, syncs: Syncs) -> None:
    bus = await house.bus(durability="power")
    await bus.register_endpoint("a.b")
    syncs.paths.clear()
    result = await bus.publish("a.b", 1, from_="c")
    box = house.mailbox("a.b").path
    assert any(result.message_id in path.name for path in syncs.paths)
    assert box / "new" in syncs.paths


async def test_process_durability_syncs_no_message(house: House, syncs: Syncs) -> None:
    bus = await house.bus()
    await bus.register_endpoint("a.b")
    syncs.paths.clear()
    await bus.publish("a.b", 1, from_="c")
    assert [path for path in syncs.paths if path.is_relative_to(house.root / "mailboxes")] == []


async def test_concurrent_publishes_share_the_sync_of_their_directory(house: House, syncs: Syncs) -> None:
    import asyncio

    bus = await house.bus(durability="power")
    await bus.register_endpoint("a.b")
    syncs.paths.clear()
    await asyncio.gather(*(bus.publish("a.b", n, from_="c") for n in range(64)))
    directory = [path for path in syncs.paths if path == house.mailbox("a.b").path / "new"]
    assert 1 <= len(directory) < 64


async def test_unknown_durability_is_refused(house: House) -> None:
    with pytest.raises(PosthouseError) as refused:
        await house.bus(durability="hope")
    assert refused.value.code == "value_invalid"
