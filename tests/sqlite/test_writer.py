"""The group-commit writer, on a real store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from posthouse.journal.append import JournalTransaction
from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from tests.journal.facts import all_records, failing, note, opened, refs


class Blocker:
    """Work that keeps the writer's thread until the test lets it go."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, tx: JournalTransaction) -> int:
        self.has_begun.set()
        assert self.may_end.wait(30)
        return note("blocker")(tx)


async def begun(blocker: Blocker) -> None:
    assert await asyncio.to_thread(blocker.has_begun.wait, 30)


async def test_of_64_concurrent_callers_one_fails_and_the_others_commit(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        works = [failing("31") if n == 31 else note(str(n)) for n in range(64)]
        answers = await asyncio.gather(*(store.writer.run(work) for work in works), return_exceptions=True)
        assert isinstance(answers[31], ValueError)
        good = [answer for answer in answers if isinstance(answer, int)]
        assert good == list(range(1, 64))
        assert refs(store) == [str(n) for n in range(64) if n != 31]
        assert store.writer.statistics()["batches"] == 1
    assert verify_store(tmp_path / "s.db") == []


async def test_an_item_that_fails_leaves_none_of_its_rows(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        with pytest.raises(ValueError, match="alone"):
            await store.writer.run(failing("alone"))
        assert refs(store) == []
        assert await store.writer.run(note("next")) == 1


@pytest.mark.parametrize("raised", [StopIteration("no"), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_exception_of_one_item_leaves_the_results_of_its_siblings(tmp_path: Path, raised: BaseException) -> None:
    def work(_tx: JournalTransaction) -> int:
        raise raised

    with opened(tmp_path / "s.db") as store:
        bad, good = store.writer.submit(work), store.writer.submit(note("good"))
        assert await asyncio.wait_for(good, 10) == 1
        failure = bad.exception() if not bad.cancelled() else asyncio.CancelledError()
        assert isinstance(failure, type(raised) | RuntimeError)
        assert await store.writer.run(note("after")) == 2


async def test_a_cancelled_callers_item_commits_and_its_siblings_get_their_answers(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        blocker = Blocker()
        first = asyncio.create_task(store.writer.run(blocker))
        await begun(blocker)
        tasks = [asyncio.create_task(store.writer.run(note(str(n)))) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        blocker.may_end.set()
        answers = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert isinstance(answers[2], asyncio.CancelledError)
        assert [answers[0], answers[1], answers[3]] == [1, 2, 4]
        assert refs(store) == ["blocker", "0", "1", "2"]


async def test_items_commit_in_the_order_of_submission_and_seq_is_that_order(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        futures = [store.writer.submit(note(str(n))) for n in range(2_000)]
        assert await asyncio.gather(*futures) == list(range(1, 2_001))
        assert refs(store) == [str(n) for n in range(2_000)]


async def test_callbacks_and_futures_complete_in_the_order_of_the_commits(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        completed: list[int] = []
        done = asyncio.get_running_loop().create_future()

        def on_done(seq: int, failure: BaseException | None) -> None:
            assert failure is None
            completed.append(seq)
            if seq == 300:
                done.set_result(None)

        for number in range(1, 301):
            if number % 3 == 1:
                future = store.writer.submit(note(str(number)))
                future.add_done_callback(lambda future: completed.append(future.result()))
            else:
                store.writer.submit_with_callback(note(str(number)), on_done)
        await asyncio.wait_for(done, 30)
        assert completed == list(range(1, 301))


async def test_callback_gets_the_result_or_the_failure(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        completed: asyncio.Queue[tuple[int | None, BaseException | None]] = asyncio.Queue()
        for work in (note("one"), failing("two"), note("three")):
            store.writer.submit_with_callback(work, lambda answer, failure: completed.put_nowait((answer, failure)))
            answer, failure = await asyncio.wait_for(completed.get(), 30)
            assert isinstance(failure, ValueError) if answer is None else failure is None
        assert refs(store) == ["one", "three"]


async def test_callback_that_raises_does_not_delay_the_next_result(tmp_path: Path) -> None:
    loop, raised = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _loop, context: raised.append(context["exception"]))

    def trip(_answer: int, _failure: BaseException | None) -> None:
        raise LookupError("not taken")

    with opened(tmp_path / "s.db") as store:
        store.writer.submit_with_callback(note("one"), trip)
        assert await asyncio.wait_for(store.writer.submit(note("two")), 30) == 2
    assert [type(each) for each in raised] == [LookupError]


async def test_waiting_items_are_bounded_and_nothing_queued_is_lost(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db", max_items=10) as store:
        blocker = Blocker()
        futures: list[asyncio.Future[int]] = [store.writer.submit(blocker)]
        await begun(blocker)
        futures += [store.writer.submit(note(str(n))) for n in range(9)]
        with pytest.raises(PosthouseError) as refused:
            store.writer.submit(note("too many"))
        assert refused.value.code == "store_busy"
        blocker.may_end.set()
        assert await asyncio.gather(*futures) == list(range(1, 11))
        assert await store.writer.run(note("room again")) == 11
        assert "too many" not in refs(store)


async def test_waiting_bytes_are_bounded_but_a_single_large_item_passes(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db", max_bytes=100) as store:
        assert await store.writer.run(note("large"), size=1_000) == 1
        blocker = Blocker()
        first = store.writer.submit(blocker, size=60)
        await begun(blocker)
        second = store.writer.submit(note("fits"), size=40)
        with pytest.raises(PosthouseError) as refused:
            store.writer.submit(note("too large"), size=1)
        assert refused.value.code == "store_busy"
        blocker.may_end.set()
        assert [await first, await second] == [2, 3]


async def test_large_items_are_split_into_batches_in_order(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        futures = [store.writer.submit(note(str(n)), size=3 * 1024 * 1024) for n in range(7)]
        assert await asyncio.gather(*futures) == list(range(1, 8))
        assert store.writer.statistics()["batches"] == 4  # of 2, 2, 2 and 1: 8 MiB at most each


async def test_close_commits_the_items_that_wait(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        blocker = Blocker()
        futures = [store.writer.submit(blocker), *(store.writer.submit(note(str(n))) for n in range(5))]
        blocker.may_end.set()
        await asyncio.to_thread(store.close)
        assert await asyncio.gather(*futures) == [1, 2, 3, 4, 5, 6]
        with pytest.raises(PosthouseError) as refused:
            await store.writer.run(note("late"))
        assert refused.value.code == "store_closed"


async def test_close_commits_items_of_the_same_loop_iteration(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        future = store.writer.submit(note("just now"))
        store.close()
        assert await future == 1


def test_threads_share_the_writer(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        answers: list[int] = []

        def call(name: int) -> None:
            answers.extend(store.writer.run_blocking(note(f"{name}/{n}")) for n in range(50))

        threads = [threading.Thread(target=call, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(answers) == list(range(1, 201))
        for name in range(4):
            mine = [ref for ref in refs(store) if ref and ref.startswith(f"{name}/")]
            assert mine == [f"{name}/{n}" for n in range(50)]


def test_a_blocking_caller_gets_what_its_work_raised(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store, pytest.raises(ValueError, match="broken"):
        store.writer.run_blocking(failing("broken"))


def test_a_loop_that_goes_away_takes_nothing_with_it(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        blocker = Blocker()

        async def leave() -> None:
            store.writer.submit(blocker)
            await begun(blocker)
            for n in range(3):
                store.writer.submit(note(str(n)))

        asyncio.run(leave())
        blocker.may_end.set()
        assert asyncio.run(store.writer.run(note("from the next loop"))) == 5
        assert refs(store) == ["blocker", "0", "1", "2", "from the next loop"]


def test_loops_that_come_and_go_leave_no_open_files(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with opened(tmp_path / "s.db") as store:
        asyncio.run(store.writer.run(note("first")))
        before = open_files()
        for n in range(20):
            asyncio.run(store.writer.run(note(str(n))))
        assert open_files() <= before + 1  # that of the last loop goes when the next one comes


def test_items_of_a_loop_that_stopped_in_the_middle_of_an_iteration_still_commit(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        loop = asyncio.new_event_loop()

        def submit_and_stop() -> None:
            loop.stop()
            store.writer.submit(note("left behind"))

        loop.call_soon(submit_and_stop)
        loop.run_forever()
        loop.close()
        assert store.writer.run_blocking(note("by another")) == 2
        assert refs(store) == ["left behind", "by another"]


def test_a_store_opened_on_a_thread_that_has_ended_goes_on(tmp_path: Path) -> None:
    made: list[Any] = []
    entering = opened(tmp_path / "s.db")
    thread = threading.Thread(target=lambda: made.append(entering.__enter__()))
    thread.start()
    thread.join(30)
    store = made[0]
    try:
        assert store.writer.run_blocking(note("a")) == 1
        assert asyncio.run(store.writer.run(note("b"))) == 2
        assert refs(store) == ["a", "b"]
    finally:
        store.close()


async def test_the_writers_clock_never_goes_back(tmp_path: Path) -> None:
    clock = FakeClock()
    with opened(tmp_path / "s.db", clock) as store:
        await store.writer.run(note("before"))
        clock.step_wall(-3_600)
        await store.writer.run(note("after the step"))
    with opened(tmp_path / "s.db", clock) as store:
        await store.writer.run(note("after a restart"))
        clock.step_wall(7_200)
        await store.writer.run(note("ahead"))
        times = [record.at_ns for record in all_records(store)]
    assert times[0] == times[1] == times[2] < times[3]
    assert verify_store(tmp_path / "s.db") == []


async def test_all_items_of_a_batch_carry_the_same_time(tmp_path: Path) -> None:
    class Ticking(FakeClock):
        def wall_ns(self) -> int:
            self.advance(1)
            return super().wall_ns()

    with opened(tmp_path / "s.db", Ticking()) as store:
        await asyncio.gather(*(store.writer.run(note(str(n))) for n in range(10)))
        assert len({record.at_ns for record in all_records(store)}) == 1


async def test_clock_that_fails_fails_the_item_and_not_the_writer(tmp_path: Path) -> None:
    class Broken(FakeClock):
        is_broken = False

        def wall_ns(self) -> int:
            if self.is_broken:
                raise OSError("no clock")
            return super().wall_ns()

    clock = Broken()
    with opened(tmp_path / "s.db", clock) as store:
        clock.is_broken = True
        with pytest.raises(OSError, match="no clock"):
            await store.writer.run(note("no time"))
        clock.is_broken = False
        assert await store.writer.run(note("in time")) == 1


async def test_refusing_callers_again_and_again_keeps_no_memory_of_each(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        store.close()
        depths = []
        for _ in range(3):
            with pytest.raises(PosthouseError) as refused:
                await store.writer.run(note("late"))
            depths.append(len(refused.traceback))
        assert len(set(depths)) == 1


async def test_writer_that_breaks_tells_every_caller_and_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal: list[str] = []
    with opened(tmp_path / "s.db", FakeClock(), on_fatal=lambda failure: fatal.append(str(failure))) as store:

        def break_down(*_given: object) -> None:
            raise MemoryError("no memory for the batch")

        monkeypatch.setattr("posthouse.sqlite.transaction.run_items", break_down)
        works = [store.writer.run(note(f"n{n}")) for n in range(3)]
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*works, return_exceptions=True)
        assert [getattr(answer, "code", answer) for answer in answers] == ["store_failed"] * 3
        assert store.writer.state == "failed"
        with pytest.raises(PosthouseError, match="no memory"):
            await store.writer.run(note("later"))
    assert len(fatal) == 1


async def test_lone_commit_that_breaks_tells_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "s.db", FakeClock(), on_fatal=lambda _failure: None) as store:

        def break_down(*_given: object) -> None:
            raise MemoryError("no memory for the batch")

        monkeypatch.setattr("posthouse.sqlite.transaction.run_items", break_down)
        async with asyncio.timeout(30):
            with pytest.raises(PosthouseError, match="no memory"):
                await store.writer.run(note("alone"), is_short=True)
