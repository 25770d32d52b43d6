from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.accept.path import Refusals
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.wire.accept_results import Accepted, Declined
from tests.relay.authors import ALICE, BOB, Author


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(wall_ns=1_700_000_040 * 10**9)  # the start of a minute


@pytest.fixture
async def core(tmp_path: Path, clock: FakeClock) -> AsyncIterator[RelayEngine]:
    started = await RelayEngine.start(EngineSettings(tmp_path / "relay", Author(99).node), clock)
    yield started
    await started.close()


async def refused_records(core: RelayEngine) -> list[tuple[str, str, int, int]]:
    bodies = [record.decoded_body() for record in await core.store.journal(0, 1_000, ["refused"])]
    return sorted((body["code"], body["key"], body["minute"], body["count"]) for body in bodies)


async def test_refusals_of_a_minute_become_one_record_per_code_and_key(core: RelayEngine, clock: FakeClock) -> None:
    for author in (ALICE, ALICE, BOB):
        await core.accept(author.raw(1, ("expiration", "1")))
    await core.accept(ALICE.raw(1, ("mesh", "nowhere")))  # its signature is not verified: the author is a claim only
    await core.accept(b"{")
    assert await core.refusals.write(core.store) == 0
    minute = clock.wall_ns() // (60 * 10**9)
    clock.advance(60)
    assert await core.refusals.write(core.store) == 4
    assert await refused_records(core) == sorted(
        [
            ("json_invalid", "unknown", minute, 1),
            ("event_expired", ALICE.node, minute, 2),
            ("event_expired", BOB.node, minute, 1),
            ("mesh_unknown", "unknown", minute, 1),
        ]
    )
    assert await core.refusals.write(core.store) == 0


async def test_accepted_event_and_retry_count_as_no_refusal(core: RelayEngine, clock: FakeClock) -> None:
    raw = ALICE.raw()
    await core.accept(raw)
    await core.accept(raw)
    clock.advance(120)
    assert await core.refusals.write(core.store) == 0


def test_memory_is_bounded_whatever_keys_come(clock: FakeClock) -> None:
    refusals = Refusals(clock, max_entries=10)
    for number in range(1_000):
        refusals.note("rate_limited", f"key-{number}")
    assert len(refusals) == 11
    assert sum(refusals._counts.values()) == 1_000


async def test_what_is_left_is_written_when_the_core_closes(tmp_path: Path, clock: FakeClock) -> None:
    settings = EngineSettings(tmp_path / "relay", Author(99).node)
    first = await RelayEngine.start(settings, clock)
    await first.accept(b"{")
    await first.close()
    second = await RelayEngine.start(settings, clock)
    assert [record[:2] for record in await refused_records(second)] == [("json_invalid", "unknown")]
    await second.close()


@pytest.mark.parametrize("kind", [10_001, 20_001, 20_002])
async def test_kinds_that_mean_nothing_yet_are_refused(core: RelayEngine, kind: int) -> None:
    answer = await core.accept(ALICE.raw(kind))
    assert isinstance(answer, Declined)
    assert answer.error.code == "kind_reserved"
    assert isinstance(await core.accept(ALICE.raw(kind + 100)), Accepted)
