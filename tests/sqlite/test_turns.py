"""Loop and writer share a processor while they take turns, and only then; nobody stays bound."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.clock import SystemClock
from posthouse.sqlite import turns
from posthouse.sqlite.turns import DIALOGUE, STRETCH_NS, Partner, Turns

PATIENCE_S = 30.0
ALLOWED = os.sched_getaffinity(0)
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="one processor: there is nothing to choose")


class Loop:
    """A thread that stands for an event loop: it sleeps, or burns its processor, until the test ends."""

    def __init__(self, *, is_busy: bool = False) -> None:
        self._is_over = threading.Event()
        self._is_busy = is_busy
        ready: list[Partner] = []
        has_begun = threading.Event()

        def live() -> None:
            ready.append(Partner())
            has_begun.set()
            while not self._is_over.is_set():
                if self._is_busy:
                    hashlib.sha256(bytes(1_000_000)).digest()  # gives the interpreter lock away
                else:
                    self._is_over.wait(PATIENCE_S)

        self._thread = threading.Thread(target=live)
        self._thread.start()
        assert has_begun.wait(PATIENCE_S)
        self.partner = ready[0]

    @property
    def processors(self) -> set[int]:
        return os.sched_getaffinity(self.partner.tid)

    def takes_turns(self) -> bool:
        return self.partner.takes_turns

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/self/task/{self.partner.tid}").exists():  # Python lets go of a thread before the kernel does
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture
def loop() -> Iterator[Loop]:
    quiet = Loop()
    yield quiet
    quiet.end()


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    yield
    os.sched_setaffinity(0, ALLOWED)


class Watch:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.ns


def talk(dialogue: Turns, watch: Watch, partner: Partner, items: int, item_ns: int = 10_000_000) -> None:
    for _ in range(items):
        watch.ns += item_ns
        dialogue.note(partner)


def test_dialogue_binds_both_to_one_processor(loop: Loop) -> None:
    watch = Watch()
    dialogue = Turns(watch)
    talk(dialogue, watch, loop.partner, DIALOGUE)
    assert loop.processors == ALLOWED
    assert not loop.takes_turns()
    talk(dialogue, watch, loop.partner, 1)
    assert loop.takes_turns()
    assert len(loop.processors) == 1
    assert os.sched_getaffinity(0) == loop.processors
    dialogue.end()
    assert os.sched_getaffinity(0) == loop.processors == ALLOWED
    assert not loop.takes_turns()


@pytest.mark.parametrize("ends", ["items meet", "another loop asks"])
def test_dialogue_ends_with_the_first_item_that_is_not_of_it(loop: Loop, ends: str) -> None:
    watch, other = Watch(), Loop()
    dialogue = Turns(watch)
    try:
        talk(dialogue, watch, loop.partner, DIALOGUE + 1)
        dialogue.note(None if ends == "items meet" else other.partner)
        assert os.sched_getaffinity(0) == loop.processors == other.processors == ALLOWED
    finally:
        dialogue.end()
        other.end()


def test_stretch_ends_and_the_next_dialogue_binds_again(loop: Loop) -> None:
    watch = Watch()
    dialogue = Turns(watch)
    talk(dialogue, watch, loop.partner, DIALOGUE + 1)
    talk(dialogue, watch, loop.partner, STRETCH_NS // 10_000_000)
    assert loop.takes_turns()
    talk(dialogue, watch, loop.partner, DIALOGUE)
    assert not loop.takes_turns()
    assert loop.processors == ALLOWED
    talk(dialogue, watch, loop.partner, DIALOGUE + 1)
    assert loop.takes_turns()
    dialogue.end()


def test_threads_that_are_slower_together_are_let_go(loop: Loop) -> None:
    watch = Watch()
    dialogue = Turns(watch)
    talk(dialogue, watch, loop.partner, DIALOGUE + 1, item_ns=1_000_000)
    assert loop.takes_turns()
    talk(dialogue, watch, loop.partner, DIALOGUE, item_ns=2_500_000)
    assert not loop.takes_turns()
    assert loop.processors == ALLOWED


def test_process_that_needs_more_than_one_processor_binds_nobody(loop: Loop) -> None:
    others = [Loop(is_busy=True), Loop(is_busy=True)]  # such as those who check signatures
    dialogue = Turns()
    try:
        for _ in range(4 * DIALOGUE):
            time.sleep(0.002)
            dialogue.note(loop.partner)
            assert not loop.takes_turns()
            assert loop.processors == ALLOWED
    finally:
        dialogue.end()
        for other in others:
            other.end()


def test_thread_started_meanwhile_is_let_go_too(loop: Loop) -> None:
    watch = Watch()
    dialogue = Turns(watch)
    talk(dialogue, watch, loop.partner, DIALOGUE + 1)
    child = Loop()  # inherits the processor of this thread, the writer's
    try:
        assert len(child.processors) == 1
        dialogue.end()
        assert child.processors == ALLOWED
    finally:
        child.end()


def test_thread_that_had_this_processor_before_keeps_it(loop: Loop) -> None:
    watch, settled = Watch(), [Loop() for _ in ALLOWED]
    for processor, other in zip(ALLOWED, settled, strict=True):
        os.sched_setaffinity(other.partner.tid, {processor})
    dialogue = Turns(watch)
    try:
        talk(dialogue, watch, loop.partner, DIALOGUE + 1)
        assert loop.takes_turns()
        dialogue.end()
        assert [other.processors for other in settled] == [{processor} for processor in ALLOWED]
        assert loop.processors == os.sched_getaffinity(0) == ALLOWED
    finally:
        dialogue.end()
        for other in settled:
            other.end()


def test_loop_whose_thread_has_ended_is_forgotten(loop: Loop) -> None:
    watch, gone = Watch(), Loop()
    dialogue = Turns(watch)
    talk(dialogue, watch, gone.partner, DIALOGUE)
    gone.end()
    talk(dialogue, watch, gone.partner, DIALOGUE)
    assert os.sched_getaffinity(0) == ALLOWED


def test_where_processors_cannot_be_chosen_everything_stays(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_CAN_BIND", False)
    watch = Watch()
    dialogue = Turns(watch)
    talk(dialogue, watch, Partner(), 3 * DIALOGUE)
    assert os.sched_getaffinity(0) == ALLOWED


def test_refusal_to_bind_changes_nothing(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tid: int, _processors: set[int]) -> None:
        raise PermissionError("not here")

    watch = Watch()
    dialogue = Turns(watch)
    with monkeypatch.context() as changed:
        changed.setattr(os, "sched_setaffinity", refuse)
        talk(dialogue, watch, loop.partner, 3 * DIALOGUE)
    assert not loop.takes_turns()
    assert loop.processors == ALLOWED


def _append(tx: JournalTransaction) -> int:
    return tx.append("config.changed", body={"changes": {}})


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.001)


async def test_writer_takes_turns_with_a_loop_that_asks_one_by_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "turns.db", (), SystemClock())
    try:
        seen: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while not seen or len(os.sched_getaffinity(0)) > 1:
                seen.append(await store.writer.run(_append))
        together = [await store.writer.run(_append) for _ in range(3)]
        assert together == list(range(seen[-1] + 1, seen[-1] + 4))
        await _until(lambda: os.sched_getaffinity(0) == ALLOWED)  # nobody asks: the writer lets go
        assert all(os.sched_getaffinity(int(tid)) == ALLOWED for tid in os.listdir("/proc/self/task"))  # noqa: PTH208
    finally:
        await asyncio.to_thread(store.close)


async def test_closing_in_the_middle_of_a_dialogue_leaves_nobody_bound(tmp_path: Path) -> None:
    store = Store(tmp_path / "closed.db", (), SystemClock())
    async with asyncio.timeout(PATIENCE_S):
        while len(os.sched_getaffinity(0)) > 1:
            await store.writer.run(_append)
    store.close()
    assert os.sched_getaffinity(0) == ALLOWED
