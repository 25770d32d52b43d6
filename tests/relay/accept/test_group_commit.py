"""Group commit: urgent and deferred jobs of several handlers share units of work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import FakeClock, SystemClock
from posthouse.model.errors import PosthouseError, error
from posthouse.relay.accept.group_commit import GROUP_EVENTS, GROUPS_AHEAD, DeferredWrites, GroupCommitter
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.store import SqliteStore
from tests.sqlite.waiting import eventually

WAIT_S = 30
TRIPS = "trips"


class Handler:
    """Appends one journal record per job; a job named `trips` is a defect."""

    def __init__(self, log: list[tuple[Handler, list[str]]]) -> None:
        self.log = log
        self.committed: list[list[str]] = []
        self.failed: list[tuple[list[str], BaseException]] = []
        self.done = 0

    def write(self, unit: Unit, jobs: Sequence[str]) -> list[int]:
        self.log.append((self, list(jobs)))
        if TRIPS in jobs:
            raise RuntimeError("a defect")
        return [unit.append("refused", ref=job) for job in jobs]

    def on_committed(self, jobs: Sequence[str], result: list[int]) -> None:
        assert len(result) == len(jobs)
        self.committed.append(list(jobs))
        self.done += len(jobs)

    def on_failed(self, jobs: Sequence[str], failure: BaseException) -> None:
        self.failed.append((list(jobs), failure))
        self.done += len(jobs)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "relay.db", SystemClock())
    yield store
    store.close()


async def drain(committer: GroupCommitter) -> None:
    await asyncio.wait_for(committer.drain(), WAIT_S)


async def test_deferred_job_joins_the_next_urgent_group_and_is_written_first(store: SqliteStore) -> None:
    log: list[tuple[Handler, list[str]]] = []
    committer, urgent, deferred = GroupCommitter(store, SystemClock()), Handler(log), Handler(log)
    before = store.statistics()["committed_items"]
    committer.defer(deferred, "sent")
    assert log == []
    committer.submit(urgent, "confirmation")
    committer.flush()
    await drain(committer)
    assert log == [(deferred, ["sent"]), (urgent, ["confirmation"])]
    assert store.statistics()["committed_items"] - before == 1  # one unit of work
    assert (urgent.committed, deferred.committed) == ([["confirmation"]], [["sent"]])


class ThreadHandler(Handler):
    """Notes the thread of each write."""

    def __init__(self) -> None:
        super().__init__([])
        self.threads: list[threading.Thread] = []

    def write(self, unit: Unit, jobs: Sequence[str]) -> list[int]:
        self.threads.append(threading.current_thread())
        return super().write(unit, jobs)


async def test_lone_event_is_written_on_the_loop_and_a_list_on_the_thread_of_the_writer(tmp_path: Path) -> None:
    clock = FakeClock()  # no commit takes long
    store = SqliteStore(tmp_path / "relay.db", clock)
    committer, handler = GroupCommitter(store, clock), ThreadHandler()
    for events in (1, 64):
        clock.advance(1)
        eventually(lambda: store._store.writer._is_asleep)
        committer.submit(handler, "job", events=events)
        committer.flush()
        await drain(committer)
    store.close()
    loop_thread = threading.current_thread()
    assert [thread is loop_thread for thread in handler.threads] == [True, False]


async def test_deferred_job_without_an_urgent_one_is_written_after_a_moment(store: SqliteStore) -> None:
    committer, deferred = GroupCommitter(store, SystemClock()), Handler([])
    committer.defer(deferred, "one")
    committer.defer(deferred, "two")
    async with asyncio.timeout(WAIT_S):
        while not deferred.committed:  # noqa: ASYNC110 - the timer of the committer is what is tested
            await asyncio.sleep(0)
    assert deferred.committed == [["one", "two"]]


async def test_urgent_job_does_not_wait_for_the_time_of_deferred_ones(store: SqliteStore) -> None:
    committer, urgent, deferred = GroupCommitter(store, SystemClock()), Handler([]), Handler([])
    committer.defer(deferred, "sent")
    before = store.statistics()["waiting_items"]
    committer.submit(urgent, "event")
    committer.flush()
    assert store.statistics()["waiting_items"] - before == 1  # handed over at once, both together
    await drain(committer)
    assert (len(urgent.committed), len(deferred.committed)) == (1, 1)


async def test_jobs_of_one_iteration_share_a_unit_of_work(store: SqliteStore) -> None:
    log: list[tuple[Handler, list[str]]] = []
    committer, handler, other = GroupCommitter(store, SystemClock()), Handler(log), Handler(log)
    for number in range(5):
        committer.submit(handler, str(number))
        committer.submit(other, str(number))
        committer.flush_soon()
    assert log == []
    await drain(committer)
    jobs = [str(number) for number in range(5)]
    assert log == [(handler, jobs), (other, jobs)]


async def test_jobs_that_come_while_two_groups_are_ahead_share_the_next(store: SqliteStore) -> None:
    committer, handler = GroupCommitter(store, SystemClock()), Handler([])
    for number in range(6):
        committer.submit(handler, str(number))
        committer.flush()
    await drain(committer)
    assert handler.committed == [["0"], ["1"], ["2", "3", "4", "5"]]


async def test_group_has_a_bounded_number_of_events(store: SqliteStore) -> None:
    committer, handler = GroupCommitter(store, SystemClock()), Handler([])
    for name in ("first", "second", "third"):
        committer.submit(handler, name, events=GROUP_EVENTS // 2)
    committer.submit(handler, "larger than a group", events=2 * GROUP_EVENTS)
    committer.flush()
    await drain(committer)
    assert handler.committed == [["first", "second"], ["third"], ["larger than a group"]]


async def test_job_that_trips_over_a_defect_fails_alone(store: SqliteStore) -> None:
    committer, handler, deferred = GroupCommitter(store, SystemClock()), Handler([]), Handler([])
    committer.defer(deferred, "sent")
    for job in ("one", TRIPS, "two"):
        committer.submit(handler, job)
    committer.flush()
    await drain(committer)
    assert deferred.committed == [["sent"]]
    assert handler.committed == [["one"], ["two"]]
    ((jobs, failure),) = handler.failed
    assert (jobs, type(failure)) == ([TRIPS], RuntimeError)
    assert [record.ref for record in await store.journal(0, 10, {"refused"})] == ["sent", "one", "two"]


async def test_handler_that_breaks_after_the_commit_keeps_no_result_from_the_others(store: SqliteStore) -> None:
    class Broken(Handler):
        def on_committed(self, jobs: Sequence[str], result: list[int]) -> None:
            raise RuntimeError("a defect")

    committer, broken, handler = GroupCommitter(store, SystemClock()), Broken([]), Handler([])
    committer.defer(broken, "sent")
    committer.submit(handler, "event")
    committer.flush()
    await drain(committer)
    assert handler.committed == [["event"]]


async def test_closed_store_fails_every_job_at_once(store: SqliteStore) -> None:
    committer, urgent, deferred = GroupCommitter(store, SystemClock()), Handler([]), Handler([])
    store.close()
    committer.defer(deferred, "sent")
    committer.submit(urgent, "one")
    committer.submit(urgent, "two")
    committer.flush()
    await drain(committer)
    ((jobs, failure),) = urgent.failed
    assert isinstance(failure, PosthouseError)
    assert (jobs, failure.code, deferred.done) == (["one", "two"], "store_closed", 1)


async def test_deferred_groups_ahead_of_the_writer_do_not_hold_up_an_urgent_job(store: SqliteStore) -> None:
    committer, urgent, deferred = GroupCommitter(store, SystemClock()), Handler([]), Handler([])
    for number in range(GROUPS_AHEAD + 1):
        committer.defer(deferred, str(number))
        committer.flush_deferred()
    before = store.statistics()["waiting_items"]
    committer.submit(urgent, "event")
    committer.flush()
    assert store.statistics()["waiting_items"] - before == 1
    await drain(committer)
    assert urgent.committed == [["event"]]


async def test_timer_of_deferred_jobs_waits_for_the_deferred_group_ahead(store: SqliteStore) -> None:
    committer, deferred = GroupCommitter(store, SystemClock()), Handler([])
    committer.defer(deferred, "ahead")
    committer.flush_deferred()
    committer.defer(deferred, "one")
    committer._flush_due()
    committer.defer(deferred, "two")  # its time is not over, but it follows with the one that waits
    await drain(committer)
    assert deferred.committed == [["ahead"], ["one", "two"]]


class FullStore(SqliteStore):
    """Has room for one handler's jobs at a time."""

    def submit_with_callback(self, work: Any, on_done: Any, *, size: int = 0, is_short: bool = False) -> None:
        def limited(unit: Unit) -> Any:
            result = work(unit)
            if len(result) > 1:
                raise error("store_full", path="relay.db", reason="no room")
            return result

        super().submit_with_callback(limited, on_done, size=size, is_short=is_short)


async def test_store_without_room_for_a_group_writes_the_jobs_of_each_handler_alone(tmp_path: Path) -> None:
    store = FullStore(tmp_path / "relay.db", SystemClock())
    committer, urgent, deferred = GroupCommitter(store, SystemClock()), Handler([]), Handler([])
    committer.defer(deferred, "sent")
    committer.submit(urgent, "event")
    committer.flush()
    await drain(committer)
    store.close()
    assert (urgent.committed, deferred.committed) == ([["event"]], [["sent"]])


class Clumsy(Handler):
    """Fails at taking bad news."""

    def on_failed(self, jobs: Sequence[str], failure: BaseException) -> None:
        raise ValueError("cannot take it")


async def test_handler_that_fails_at_a_failure_keeps_neither_the_others_nor_the_committer(store: SqliteStore) -> None:
    committer, clumsy, handler = GroupCommitter(store, SystemClock()), Clumsy([]), Handler([])
    committer.submit(clumsy, TRIPS)
    committer.submit(handler, TRIPS)
    committer.flush()
    await drain(committer)
    assert [jobs for jobs, _ in handler.failed] == [[TRIPS]]
    committer.submit(handler, "later")
    committer.flush()
    await drain(committer)
    assert handler.committed == [["later"]]


async def test_waiting_for_deferred_writes_ends_when_the_store_refuses_them_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "relay.db", SystemClock())
    writes = DeferredWrites(GroupCommitter(store, SystemClock()), None)
    store.close()
    writes.defer(("main", "reader"), lambda unit: None)
    await asyncio.wait_for(writes.settled(("main", "reader")), WAIT_S)
