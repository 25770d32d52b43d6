"""Where events are checked: a lone small one on the loop, everything else on the threads, one for each processor."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from posthouse.model.clock import SystemClock
from posthouse.model.event import encode_event
from posthouse.relay.accept import verify
from posthouse.relay.accept.submission import Job
from posthouse.relay.accept.verify import verify_job
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.wire.accept_results import Accepted, Answer, Declined
from tests.relay.authors import ALICE, BOB

WAIT_S = 30
PROCESSORS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def checked_on(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each check ran on the loop's thread, in the order they began."""
    loop_thread = threading.get_ident()
    seen: list[bool] = []

    def check(job: Job) -> None:
        seen.append(threading.get_ident() == loop_thread)
        verify_job(job)

    monkeypatch.setattr(verify, "verify_job", check)
    return seen


@pytest.mark.skipif(len(PROCESSORS) < 2, reason="one processor: there is nothing to choose")
async def test_each_thread_has_a_processor_of_its_own() -> None:
    before = set(threading.enumerate())
    threads = verify.VerifierPool(len(PROCESSORS), lambda _jobs: None)
    started = [thread for thread in threading.enumerate() if thread not in before]
    try:
        deadline = time.monotonic() + WAIT_S
        while sorted(map(processors_of, started)) != [[processor] for processor in PROCESSORS]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)
        assert sorted(os.sched_getaffinity(0)) == PROCESSORS
    finally:
        threads.close()


async def test_where_processors_cannot_be_chosen_events_are_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_tid: int, _processors: set[int]) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    core = await RelayEngine.start(EngineSettings(tmp_path / "relay", ALICE.node), SystemClock())
    try:
        answers = await asyncio.wait_for(core.accept_many([ALICE.raw() for _ in range(20)]), WAIT_S)
        assert [answer.status for answer in answers] == [201] * 20
    finally:
        await core.close()


def processors_of(thread: threading.Thread) -> list[int]:
    assert thread.native_id is not None
    return sorted(os.sched_getaffinity(thread.native_id))


async def test_a_lone_small_event_is_checked_without_a_change_of_thread(
    core: RelayEngine, checked_on: list[bool]
) -> None:
    for _ in range(3):
        assert isinstance(await core.accept(ALICE.raw()), Accepted)
    assert checked_on == [True] * 3


async def test_a_lone_large_event_is_checked_on_a_thread(core: RelayEngine, checked_on: list[bool]) -> None:
    event = encode_event(ALICE.event(content="x" * verify.LONE_BYTES))
    assert isinstance(await core.accept(event), Accepted)
    assert checked_on == [False]


async def test_a_list_is_checked_on_threads(core: RelayEngine, checked_on: list[bool]) -> None:
    await core.accept_many([ALICE.raw() for _ in range(20)])
    assert checked_on == [False] * 20


async def test_events_that_come_together_are_checked_on_threads_but_for_the_first(
    core: RelayEngine, checked_on: list[bool]
) -> None:
    answers = await asyncio.wait_for(asyncio.gather(*(core.accept(ALICE.raw()) for _ in range(50))), WAIT_S)
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert len(checked_on) == 50
    assert checked_on.count(True) == 1


async def test_a_flood_of_forged_events_is_verified_on_the_loop_once_in_a_turn(
    core: RelayEngine, checked_on: list[bool]
) -> None:
    event = ALICE.event()
    forged = encode_event(msgspec.structs.replace(event, sig=event.sig[::-1]))
    done = asyncio.Event()
    answers: list[Answer] = []

    def take(given: Sequence[Answer]) -> None:
        answers.extend(given)
        if len(answers) == 40:
            done.set()

    lane = core.open_submitter(take)
    for _ in range(40):
        lane.submit([forged])  # each is refused at once when it is checked here, and leaves the path empty
    assert checked_on.count(True) == 1
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert all(isinstance(answer, Declined) for answer in answers)
    assert lane.in_flight() == 0


async def test_an_event_behind_one_that_is_being_written_is_checked_on_a_thread(
    core: RelayEngine, checked_on: list[bool]
) -> None:
    done = asyncio.Event()
    lane = core.open_submitter(lambda _answers: None)
    lane.submit([ALICE.raw()])
    await asyncio.sleep(0)  # the writer hears of it in this turn, so its answer comes in a later one
    core.open_submitter(lambda _answers: done.set()).submit([BOB.raw()])
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert checked_on == [True, False]
