"""Replay sends each message once, however often it is run and wherever it was broken off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from posthouse import Bus
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.delivery import open_client
from posthouse.pipeline.replay_messages import (
    BusTarget,
    PastMessage,
    ReplayCursor,
    ReplayCursors,
    Replayed,
    ReplayOptions,
    ReplayTarget,
    SendResult,
    TopicTarget,
    replay,
)
from tests.pipeline.relay import Post, post_office

NAME = "again"


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    with post_office(tmp_path) as running:
        yield running


def old_messages(count: int) -> list[PastMessage]:
    return [
        PastMessage(10 + number, "e" * 32, number, f"m{number}", "relay", "s", f"body {number}")
        for number in range(count)
    ]


class Broken(Exception):
    """What stands for a kill: the batch was sent, the cursor not written."""


async def run(
    target: ReplayTarget,
    cursors: ReplayCursors,
    terms: ReplayOptions,
    messages: list[PastMessage],
    *,
    break_after: int | None = None,
) -> Replayed:
    """Replay what lies behind the cursor, two in a batch."""
    cursor = cursors.begin(NAME, terms)
    left = [old for old in messages if (old.at_ns, old.epoch, old.seq) > cursor.position]

    class Breaking(ReplayCursors):
        saved = 0

        def save(self, name: str, cursor: ReplayCursor) -> None:
            if break_after is not None and self.saved == break_after:
                raise Broken
            self.saved += 1
            super().save(name, cursor)

    keeping = Breaking(cursors._directory.parent)
    return await replay(iter(left), target, keeping, NAME, cursor, FakeClock(), rate=None)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.pipeline.replay_messages.BATCH", 2)


async def test_replay_to_a_topic_that_is_broken_off_and_run_again_delivers_once(post: Post, tmp_path: Path) -> None:
    await post.open_topic("again")
    cursors, terms, messages = (
        ReplayCursors(tmp_path / "lake"),
        ReplayOptions("true", "#again", "main"),
        old_messages(7),
    )
    options = post.options(f"replay/{NAME}")
    async with open_client(options) as client:
        for break_after in (0, 1):
            with pytest.raises(Broken):
                await run(TopicTarget(client, options, "again"), cursors, terms, messages, break_after=break_after)
        done = await run(TopicTarget(client, options, "again"), cursors, terms, messages)
        assert (done.total, done.duplicates > 0) == (7, True)
        again = await run(TopicTarget(client, options, "again"), cursors, terms, messages)
        assert (again.sent, again.total) == (0, 7)
    assert await post.read(7) == [old.body for old in messages]


async def test_replay_to_a_bus_that_is_broken_off_and_run_again_delivers_once(tmp_path: Path) -> None:
    cursors, terms, messages = ReplayCursors(tmp_path / "lake"), ReplayOptions("true", "test.agent"), old_messages(7)
    async with Bus(tmp_path / "bus") as bus:
        await bus.register_endpoint("test.agent")
        for break_after in (0, 1):
            with pytest.raises(Broken):
                await run(BusTarget(bus, NAME, "test.agent"), cursors, terms, messages, break_after=break_after)
        done = await run(BusTarget(bus, NAME, "test.agent"), cursors, terms, messages)
        assert (done.total, done.duplicates) == (7, 2)
        got = [envelope.payload for envelope in await bus.read_inbox("test.agent")]
    assert [payload["content"] for payload in got] == [old.body for old in messages]
    assert got[0]["platformData"]["replay_of"] == "m0"


async def test_subject_without_an_endpoint_is_told(tmp_path: Path) -> None:
    async with Bus(tmp_path / "bus") as bus:
        with pytest.raises(PosthouseError) as raised:
            await run(
                BusTarget(bus, NAME, "no.where"),
                ReplayCursors(tmp_path),
                ReplayOptions("true", "no.where"),
                old_messages(1),
            )
    assert raised.value.code == "replay_target_invalid"


def test_name_stands_for_its_terms(tmp_path: Path) -> None:
    cursors = ReplayCursors(tmp_path)
    cursors.save(NAME, ReplayCursor(ReplayOptions("a = 1", "#x", "main"), 5, "e", 7, 3))
    assert cursors.begin(NAME, ReplayOptions("a = 1", "#x", "main")).sent == 3
    for other in (
        ReplayOptions("a = 2", "#x", "main"),
        ReplayOptions("a = 1", "#y", "main"),
        ReplayOptions("a = 1", "#x", "team"),
    ):
        with pytest.raises(PosthouseError) as raised:
            cursors.begin(NAME, other)
        assert raised.value.code == "replay_cursor_differs"
    with pytest.raises(PosthouseError):
        cursors.begin("../other", ReplayOptions("true", "#x"))


async def test_rate_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Nowhere:
        async def resume(self, cursor: ReplayCursor) -> None: ...

        async def send(self, messages: Sequence[PastMessage]) -> SendResult:
            return SendResult(0)

        async def journal_head(self) -> int:
            return 0

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(seconds)

    clock = FakeClock()
    monkeypatch.setattr("posthouse.pipeline.replay_messages.asyncio.sleep", sleep)
    terms = ReplayOptions("true", "#x")
    await replay(iter(old_messages(20)), Nowhere(), ReplayCursors(tmp_path), "r", ReplayCursor(terms), clock, rate=5)
    assert sum(waited) == pytest.approx(4.0)
