"""A short item that is alone commits on the loop's thread; anything else commits on the writer's."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store
from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal, error
from posthouse.storage.handover import PendingItem, deliver_results
from posthouse.storage.writer import SLOW_COMMIT_NS, THREADED_NS
from tests.journal.facts import note, opened, refs
from tests.sqlite.waiting import eventually

PAUSE_S = 2 * THREADED_NS / 1e9


def thread_of(_tx: JournalTransaction) -> threading.Thread:
    return threading.current_thread()


async def is_committed_here(store: Store) -> bool:
    """Return True if a short item commits on this thread while the writer's thread sleeps."""
    eventually(lambda: store.writer._is_asleep)
    return await store.writer.run(thread_of, is_short=True) is threading.current_thread()


async def idle() -> None:
    """Let the loop poll its sockets several times, as it does between two requests of one client."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lone_short_item_commits_on_the_loops_thread(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        assert await is_committed_here(store)
        await idle()
        assert await is_committed_here(store)
        await idle()
        assert await store.writer.run(note("kept"), is_short=True) == 1
        assert refs(store) == ["kept"]
    assert verify_store(tmp_path / "s.db") == []


async def test_work_that_is_not_short_stays_on_the_writers_thread(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        assert await store.writer.run(thread_of) is not threading.current_thread()


async def test_after_a_batch_the_thread_commits_for_a_while(tmp_path: Path) -> None:
    clock = FakeClock()
    with opened(tmp_path / "s.db", clock) as store:
        threads = await asyncio.gather(*(store.writer.run(thread_of, is_short=True) for _ in range(2)))
        assert threading.current_thread() not in threads
        await idle()
        assert not await is_committed_here(store)
        clock.advance(PAUSE_S)
        await idle()
        assert await is_committed_here(store)


async def test_after_a_slow_commit_the_thread_commits_for_a_while(tmp_path: Path) -> None:
    clock = FakeClock()

    def slow(_tx: JournalTransaction) -> None:
        clock.advance(2 * SLOW_COMMIT_NS / 1e9)

    with opened(tmp_path / "s.db", clock) as store:
        await store.writer.run(slow, is_short=True)
        await idle()
        assert not await is_committed_here(store)
        clock.advance(PAUSE_S)
        assert await is_committed_here(store)


async def test_a_caller_that_arrives_during_a_lone_commit_moves_the_work_to_the_thread(tmp_path: Path) -> None:
    clock = FakeClock()
    ours, theirs = socket.socketpair()
    with opened(tmp_path / "s.db", clock) as store, theirs:

        def commit_while_another_calls(tx: JournalTransaction) -> threading.Thread:
            theirs.send(b"x")
            return thread_of(tx)

        async def serve_another() -> threading.Thread:
            reader, writer = await asyncio.open_connection(sock=ours)
            await reader.readexactly(1)
            committed_by = await store.writer.run(thread_of, is_short=True)
            writer.close()
            return committed_by

        other = asyncio.create_task(serve_another())
        await idle()
        eventually(lambda: store.writer._is_asleep)
        assert await store.writer.run(commit_while_another_calls, is_short=True) is threading.current_thread()
        assert await asyncio.wait_for(other, 10) is not threading.current_thread()
        assert not await is_committed_here(store)
        clock.advance(PAUSE_S)
        assert await is_committed_here(store)


async def test_caller_is_answered_before_the_commit_of_another_that_arrived_meanwhile(tmp_path: Path) -> None:
    order: list[str] = []
    with opened(tmp_path / "s.db") as store:
        eventually(lambda: store.writer._is_asleep)
        store.writer.submit_with_callback(note("first"), lambda _seq, _error: order.append("answered"), is_short=True)
        await asyncio.sleep(0)
        assert (order, refs(store)) == ([], ["first"])
        second = store.writer.submit(lambda _tx: order.append("committed"), is_short=True)
        await asyncio.wait_for(second, 10)
    assert order == ["answered", "committed"]


async def test_next_request_of_the_caller_that_was_answered_is_no_second_caller(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        for _ in range(5):
            assert await is_committed_here(store)  # at once, before the loop polls again


async def test_results_of_a_lone_commit_come_after_those_committed_before(tmp_path: Path) -> None:
    order: list[str] = []
    all_done = asyncio.Event()

    def done(name: str) -> None:
        order.append(name)
        if len(order) == 2:
            all_done.set()

    with opened(tmp_path / "s.db") as store:
        store.writer.submit_with_callback(note("threaded"), lambda _seq, _error: done("threaded"))
        await asyncio.sleep(0)
        eventually(lambda: store.writer.statistics()["batches"] == 1)  # blocks the loop: the result waits for it
        store.writer.submit_with_callback(note("lone"), lambda _seq, _error: done("lone"), is_short=True)
        await asyncio.wait_for(all_done.wait(), 10)
    assert order == ["threaded", "lone"]


async def test_no_lone_commit_begins_before_the_results_of_a_batch_are_on_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, order = FakeClock(), list[str]()
    is_committed, may_deliver = threading.Event(), threading.Event()

    def deliver_late(batch: list[PendingItem[JournalTransaction]], committed_ns: int) -> None:
        is_committed.set()
        may_deliver.wait(10)
        deliver_results(batch, committed_ns)

    monkeypatch.setattr("posthouse.storage.writer.deliver_results", deliver_late)
    with opened(tmp_path / "s.db", clock) as store:
        eventually(lambda: store.writer._is_asleep)
        store.writer.submit_with_callback(note("first"), lambda _seq, _error: order.append("first"), is_short=True)
        other = threading.Thread(target=store.writer.run_blocking, args=(note("other"),))
        other.start()  # wakes the writer's thread, which takes the first item along
        assert is_committed.wait(10)
        clock.advance(PAUSE_S)
        store.writer.submit_with_callback(note("second"), lambda _seq, _error: order.append("second"), is_short=True)
        await idle()
        may_deliver.set()
        async with asyncio.timeout(10):
            while len(order) < 2:  # noqa: ASYNC110 - the callbacks of a loop that runs
                await asyncio.sleep(0.001)
        other.join()
    assert order == ["first", "second"]


async def test_a_lone_item_that_raises_leaves_no_rows_and_the_writer_goes_on(tmp_path: Path) -> None:
    def failing(tx: JournalTransaction) -> None:
        note("lost")(tx)
        raise ValueError("alone")

    with opened(tmp_path / "s.db") as store:
        with pytest.raises(ValueError, match="alone"):
            await store.writer.run(failing, is_short=True)
        await idle()
        assert await store.writer.run(note("next"), is_short=True) == 1
        assert refs(store) == ["next"]


async def test_a_failed_disk_in_a_lone_commit_ends_the_store_once(tmp_path: Path) -> None:
    failures: list[Fatal] = []

    def broken(_tx: JournalTransaction) -> None:
        raise error("store_failed", path="s.db", reason="the disk is gone")

    with opened(tmp_path / "s.db", on_fatal=failures.append) as store:
        with pytest.raises(Fatal, match="the disk is gone"):
            await asyncio.wait_for(store.writer.run(broken, is_short=True), 10)
        with pytest.raises(Fatal, match="the disk is gone"):
            await store.writer.run(note("after"), is_short=True)
        assert store.writer.state == "failed"
    assert [failure.code for failure in failures] == ["store_failed"]


def test_closing_from_another_thread_waits_for_a_lone_commit(tmp_path: Path) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def blocking(tx: JournalTransaction) -> int:
        has_begun.set()
        assert may_end.wait(30)
        return note("kept")(tx)

    async def commit() -> int:
        return await store.writer.run(blocking, is_short=True)

    seqs: list[int] = []
    with opened(tmp_path / "s.db") as store:
        loop_thread = threading.Thread(target=lambda: seqs.append(asyncio.run(commit())))
        loop_thread.start()
        assert has_begun.wait(30)
        closing = threading.Thread(target=store.writer.close)
        closing.start()
        may_end.set()
        for thread in (loop_thread, closing):
            thread.join(30)
            assert not thread.is_alive()
    assert seqs == [1]
    assert verify_store(tmp_path / "s.db") == []
