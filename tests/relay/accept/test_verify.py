"""Where events are verified: on the event loop in slices, or on worker threads; by the number of usable processors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.keys.batch_signature import sign_batch
from posthouse.model.clock import FakeClock
from posthouse.model.event import encode_event
from posthouse.model.limits import BATCH_MAX_EVENTS
from posthouse.relay.accept import verify
from posthouse.relay.accept.submission import Answered, Job, Submission, Submitter
from posthouse.relay.accept.verify import (
    LONE_BYTES,
    SLICE_NS,
    LoopVerifier,
    read_quotas,
    usable_processors,
    verifier_threads,
    verify_job,
    verify_whole_batch,
)
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.wire.accept_results import Accepted, Answer, Declined
from tests.relay.authors import ALICE, BOB

WAIT_S = 30
THREADS = 2


@pytest.fixture
def verified_on_loop(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each event was verified on the thread of the loop, in the order they began."""
    loop_thread = threading.get_ident()
    seen: list[bool] = []

    def record(job: Job) -> None:
        seen.append(threading.get_ident() == loop_thread)
        verify_job(job)

    def record_batch(jobs: Sequence[Job]) -> bool:
        if is_whole := verify_whole_batch(jobs):
            seen.extend([threading.get_ident() == loop_thread] * len(jobs))
        return is_whole

    monkeypatch.setattr(verify, "verify_job", record)
    monkeypatch.setattr(verify, "verify_whole_batch", record_batch)
    return seen


async def _engine(folder: Path, threads: int) -> RelayEngine:
    settings = EngineSettings(folder / "relay", ALICE.node, verifier_threads=threads)
    return await RelayEngine.start(settings, FakeClock())


@pytest.fixture(params=[0, THREADS], ids=["loop", "threads"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RelayEngine]:
    engine = await _engine(tmp_path, request.param)
    yield engine
    await engine.close()


@pytest.fixture
async def threaded(tmp_path: Path) -> AsyncIterator[RelayEngine]:
    engine = await _engine(tmp_path, THREADS)
    yield engine
    await engine.close()


@pytest.fixture
async def unthreaded(tmp_path: Path) -> AsyncIterator[RelayEngine]:
    engine = await _engine(tmp_path, 0)
    yield engine
    await engine.close()


async def test_lone_small_event_is_verified_without_a_change_of_thread(
    engine: RelayEngine, verified_on_loop: list[bool]
) -> None:
    for _ in range(3):
        assert isinstance(await engine.accept(ALICE.raw()), Accepted)
    assert verified_on_loop == [True] * 3


async def test_lone_large_event_is_verified_on_a_thread(threaded: RelayEngine, verified_on_loop: list[bool]) -> None:
    event = encode_event(ALICE.event(content="x" * LONE_BYTES))
    assert isinstance(await threaded.accept(event), Accepted)
    assert verified_on_loop == [False]


async def test_list_is_verified_on_threads(threaded: RelayEngine, verified_on_loop: list[bool]) -> None:
    await threaded.accept_many([ALICE.raw() for _ in range(20)])
    assert verified_on_loop == [False] * 20


async def test_events_of_a_batch_signature_are_verified_without_a_change_of_thread(
    engine: RelayEngine, verified_on_loop: list[bool]
) -> None:
    answers = await asyncio.wait_for(engine.accept_many(_batch(BATCH_MAX_EVENTS)), WAIT_S)
    assert [answer.status for answer in answers] == [201] * BATCH_MAX_EVENTS
    assert verified_on_loop == [True] * BATCH_MAX_EVENTS


def _jobs(events: Sequence[bytes]) -> Sequence[Job]:
    return Submission(events, Submitter(lambda _: None, lambda _: None)).jobs


@pytest.mark.parametrize("size", [2, 3, 63, 64])
def test_whole_batch_has_the_rows_that_its_events_have_alone(size: int) -> None:
    events = _batch(size)
    together, alone = _jobs(events), _jobs(events)
    assert verify_whole_batch(together)
    for job in alone:
        verify_job(job)
    assert [job.row for job in together] == [job.row for job in alone]
    assert None not in [job.row for job in together]


def _forged(event: bytes) -> bytes:
    return event.replace(b'"content":"', b'"content":"forged ', 1)


@pytest.mark.parametrize(
    "others",
    [
        lambda batch: batch[1:],
        lambda batch: [batch[1], batch[0], *batch[2:]],
        lambda batch: [*batch[:3], batch[2]],
        lambda batch: [*batch, ALICE.raw()],
        lambda batch: [*batch[:-1], ALICE.raw()],
        lambda batch: [*batch[:-1], BOB.raw()],
        lambda batch: [*batch[:-1], _batch(4)[-1]],
        lambda batch: [*batch[:-1], _forged(batch[-1])],
        lambda batch: [*batch[:-1], b"{"],
        lambda batch: [ALICE.raw(), *batch[1:]],
    ],
    ids=[
        "part",
        "other order",
        "repeated",
        "longer",
        "native",
        "other author",
        "other batch",
        "forged",
        "json",
        "first",
    ],
)
def test_anything_but_a_whole_batch_is_left_to_the_verification_of_each_event(
    others: Callable[[list[bytes]], list[bytes]],
) -> None:
    jobs = _jobs(others(_batch(4)))
    assert not verify_whole_batch(jobs)
    assert [(job.row, job.refusal) for job in jobs] == [(None, None)] * len(jobs)


async def test_forged_event_of_a_batch_is_refused_without_its_siblings(engine: RelayEngine) -> None:
    *valid, last = _batch(4)
    answers = await asyncio.wait_for(engine.accept_many([*valid, _forged(last)]), WAIT_S)
    assert [answer.status for answer in answers] == [201] * 3 + [400]


async def test_batch_of_large_events_takes_the_loop_no_longer_than_a_slice(
    threaded: RelayEngine, verified_on_loop: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(verify, "LONE_SLICE_NS", 0)
    answers = await asyncio.wait_for(threaded.accept_many(_batch(8)), WAIT_S)
    assert [answer.status for answer in answers] == [201] * 8
    assert verified_on_loop.count(True) == 1


async def test_events_that_only_claim_to_share_a_signature_take_the_loop_no_longer_than_a_slice(
    threaded: RelayEngine, verified_on_loop: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "LONE_SLICE_NS", 0)
    answers = await asyncio.wait_for(threaded.accept_many(_batch(8) + _batch(8)), WAIT_S)
    assert [answer.status for answer in answers] == [201] * 16
    assert verified_on_loop.count(True) == 1


def _batch(size: int) -> list[bytes]:
    events = [ALICE.event() for _ in range(size)]
    signatures = sign_batch(ALICE.key, [event.id for event in events])
    return [
        encode_event(msgspec.structs.replace(event, sig=sig)) for event, sig in zip(events, signatures, strict=True)
    ]


async def test_events_that_come_together_are_verified_on_threads_but_for_the_first(
    threaded: RelayEngine, verified_on_loop: list[bool]
) -> None:
    answers = await asyncio.wait_for(asyncio.gather(*(threaded.accept(ALICE.raw()) for _ in range(50))), WAIT_S)
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert len(verified_on_loop) == 50
    assert verified_on_loop.count(True) == 1


async def test_without_threads_everything_is_verified_on_the_loop(
    unthreaded: RelayEngine, verified_on_loop: list[bool]
) -> None:
    before = threading.active_count()
    large = encode_event(ALICE.event(content="x" * LONE_BYTES))
    answers = await asyncio.wait_for(
        unthreaded.accept_many([ALICE.raw(), large, *[BOB.raw() for _ in range(48)]]), WAIT_S
    )
    assert [answer.status for answer in answers] == [201] * 50
    assert verified_on_loop == [True] * 50
    assert threading.active_count() == before


async def test_flood_of_forged_events_is_verified_at_once_only_once_per_iteration(
    engine: RelayEngine, verified_on_loop: list[bool]
) -> None:
    event = ALICE.event()
    forged = encode_event(msgspec.structs.replace(event, sig=event.sig[::-1]))
    done = asyncio.Event()
    answers: list[Answer] = []

    def take(answered: Sequence[Answered]) -> None:
        answers.extend(each.answer for each in answered)
        if len(answers) == 40:
            done.set()

    submitter = engine.open_submitter(take)
    for _ in range(40):
        submitter.submit([forged])  # each is refused as soon as it is verified, and leaves the path empty
    assert verified_on_loop.count(True) == 1
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert all(isinstance(answer, Declined) for answer in answers)
    assert submitter.in_flight == 0


async def test_event_behind_one_that_is_being_written_is_verified_on_a_thread(
    threaded: RelayEngine, verified_on_loop: list[bool]
) -> None:
    done, may_write = asyncio.Event(), threading.Event()
    busy = threaded.store.submit(lambda _unit: may_write.wait(WAIT_S))  # keeps the writer's thread
    threaded.open_submitter(lambda _answers: None).submit([ALICE.raw()])
    await asyncio.sleep(0)  # the writer gets it in this iteration, so its answer comes in a later one
    threaded.open_submitter(lambda _answers: done.set()).submit([BOB.raw()])
    may_write.set()
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert await busy
    assert verified_on_loop == [True, False]


class Slices:
    """A loop verifier whose clock moves by a fixed cost per event; collects the slices that it returns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost_ns: int) -> None:
        self.sizes: list[int] = []
        self.iterations = 0
        self._now_ns = 0
        self._cost_ns = cost_ns
        self._done = asyncio.Event()
        self._left = 0
        monkeypatch.setattr(verify, "verify_job", self._pass_time)
        self._verifier = LoopVerifier(self._take, lambda: self._now_ns)

    async def run(self, count: int) -> None:
        self._left = count
        submission = Submission([b"{}"] * count, Submitter(lambda _submission: None, lambda _answers: None))
        self._verifier.add(submission.jobs)
        assert self.sizes == []  # never inside `add`: the caller has more to do in this iteration
        self._count_iterations()
        await asyncio.wait_for(self._done.wait(), WAIT_S)

    def _count_iterations(self) -> None:
        self.iterations += 1
        if not self._done.is_set():
            asyncio.get_running_loop().call_soon(self._count_iterations)

    def _pass_time(self, _job: Job) -> None:
        self._now_ns += self._cost_ns

    def _take(self, jobs: Sequence[Job]) -> None:
        self.sizes.append(len(jobs))
        self._left -= len(jobs)
        if not self._left:
            self._done.set()


async def test_slice_ends_before_it_exceeds_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = Slices(monkeypatch, SLICE_NS // 10)
    await slices.run(35)
    assert slices.sizes == [10, 10, 10, 5]


async def test_loop_serves_others_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = Slices(monkeypatch, SLICE_NS // 4)
    await slices.run(20)
    assert slices.sizes == [4] * 5
    assert slices.iterations >= 5


async def test_event_that_takes_longer_than_a_slice_is_verified_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = Slices(monkeypatch, 3 * SLICE_NS)
    await slices.run(3)
    assert slices.sizes == [1, 1, 1]


@pytest.mark.parametrize(("processors", "threads"), [(1, 0), (2, 2), (4, 4), (64, 64)])
def test_threads_verify_only_where_two_processors_are_usable(processors: int, threads: int) -> None:
    assert verifier_threads(processors) == threads


@pytest.mark.parametrize(
    ("affinity", "quotas", "usable"),
    [
        (8, [], 8),
        (2, [], 2),
        (8, [4.0], 4),
        (8, [3.9], 3),
        (2, [16.0], 2),
        (8, [0.5], 1),
        (16, [8.0, 2.5, 12.0], 2),
    ],
)
def test_affinity_and_the_smallest_quota_bound_the_usable_processors(
    affinity: int, quotas: list[float], usable: int
) -> None:
    assert usable_processors(affinity, quotas) == usable


@given(st.integers(1, 1024), st.lists(st.floats(0.01, 2048)))
def test_a_process_always_has_a_processor_and_never_more_than_its_affinity(affinity: int, quotas: list[float]) -> None:
    assert 1 <= usable_processors(affinity, quotas) <= affinity


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


CGROUPS: dict[str, tuple[str, dict[str, str], list[float]]] = {
    "v2, a quota": ("0::/app\n", {"app/cpu.max": "250000 100000\n"}, [2.5]),
    "v2, no quota": ("0::/app\n", {"app/cpu.max": "max 100000\n"}, []),
    "v2, the group above has the quota": (
        "0::/outer/inner\n",
        {"outer/cpu.max": "300000 100000\n", "outer/inner/cpu.max": "max 100000\n"},
        [3.0],
    ),
    "v2, in a container the group is the root": ("0::/\n", {"cpu.max": "150000 100000\n"}, [1.5]),
    "v1, a quota": (
        "4:memory:/app\n3:cpu,cpuacct:/app\n0::/\n",
        {"cpu,cpuacct/app/cpu.cfs_quota_us": "600000\n", "cpu,cpuacct/app/cpu.cfs_period_us": "100000\n"},
        [6.0],
    ),
    "v1, no quota": (
        "3:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        [],
    ),
    "no control groups": ("", {}, []),
}


@pytest.mark.parametrize(("own", "files", "quotas"), CGROUPS.values(), ids=CGROUPS.keys())
def test_quotas_are_read_from_both_versions_of_control_groups(
    own: str, files: dict[str, str], quotas: list[float], tmp_path: Path
) -> None:
    write_files(tmp_path / "cgroup", files)
    (tmp_path / "own").write_text(own)
    assert list(read_quotas(tmp_path / "cgroup", tmp_path / "own")) == quotas


def test_a_machine_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert list(read_quotas(tmp_path / "cgroup", tmp_path / "own")) == []
