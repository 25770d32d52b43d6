"""A disk without room: nothing is taken, everything can be read, and writing goes on once there is room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal
from posthouse.model.event import encode_event
from posthouse.relay.engine import EngineSettings, RelayEngine
from tests.faults.failing_vfs import FailingVFS
from tests.relay.accept.answers import accepted, code, codes
from tests.relay.accept.conftest import RELAY
from tests.relay.authors import ALICE, BOB


class Disk:
    """A core on a file system that fails on demand."""

    def __init__(self, core: RelayEngine, vfs: FailingVFS, fatal: list[Fatal]) -> None:
        self.core = core
        self.vfs = vfs
        self.fatal = fatal


@pytest.fixture
async def disk(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Disk]:
    vfs, fatal = FailingVFS(), list[Fatal]()
    settings = EngineSettings(tmp_path / "relay", RELAY)
    core = await RelayEngine.start(settings, clock, vfs=vfs.name, on_fatal=fatal.append)
    yield Disk(core, vfs, fatal)
    vfs.write_failure = vfs.sync_failure = None
    await core.close()


async def test_full_disk_is_answered_507_and_reading_goes_on(disk: Disk) -> None:
    kept = ALICE.event()
    first = accepted((await disk.core.accept_many([encode_event(kept)]))[0])
    disk.vfs.write_failure = "full"
    refused = await disk.core.accept(BOB.raw())
    assert (code(refused), refused.status, disk.core.state) == ("store_full", 507, "full")
    assert (await disk.core.event(BOB.node, kept.id)).seq == first.seq
    assert disk.fatal == []


async def test_known_event_is_answered_from_a_full_disk(disk: Disk) -> None:
    raw = ALICE.raw()
    await disk.core.accept(raw)
    disk.vfs.write_failure = "full"
    assert code(await disk.core.accept(raw)) == "200"


async def test_writing_resumes_without_a_gap_once_there_is_room(disk: Disk) -> None:
    first = accepted(await disk.core.accept(ALICE.raw()))
    disk.vfs.write_failure = "full"
    retried = [BOB.raw() for _ in range(5)]
    assert codes(await disk.core.accept_many(retried)) == ["store_full"] * 5
    disk.vfs.write_failure = None
    answers = await disk.core.accept_many(retried)
    assert [accepted(answer).seq for answer in answers] == [(first.seq or 0) + step for step in range(1, 6)]
    assert disk.core.state == "open"


async def test_full_disk_costs_no_rate(disk: Disk) -> None:
    disk.vfs.write_failure = "full"
    for _ in range(12):
        assert set(codes(await disk.core.accept_many([ALICE.raw() for _ in range(500)]))) == {"store_full"}
    disk.vfs.write_failure = None
    assert code(await disk.core.accept(ALICE.raw())) == "201"


async def test_nobody_hears_of_an_event_whose_sync_failed(disk: Disk) -> None:
    published: list[object] = []
    disk.core.listen(published.extend)
    disk.vfs.sync_failure = "sync"
    assert code(await disk.core.accept(ALICE.raw())) == "store_failed"
    assert (published, len(disk.fatal), disk.core.state) == ([], 1, "failed")
