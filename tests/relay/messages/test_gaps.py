"""Gaps: messages of topics beyond a reader's queue are not lost; the reader learns where to find them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import Event, Reading, post, reading, send


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """A relay whose queues hold two messages."""
    async with checked(tmp_path / "relay", queue_max=2) as started:
        yield started


@pytest.fixture
async def posts(edge: Edge, alice: Author, bob: Author) -> list[Event]:
    """Five messages to a topic that bob follows; its queue had room for the first two."""
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
    await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, await edge.token(bob))
    made = [post(alice, "news", str(number)) for number in range(5)]
    await send(edge, *made)
    return made


async def gaps(box: Reading) -> list[dict[str, Any]]:
    """Return the gaps that the relay names, before or after the backlog was confirmed."""
    mesh, found = await box.next("GAP")
    assert mesh == "main"
    return list(found)


async def catch_up(box: Reading, alice: Author, posts: list[Event]) -> None:
    await box.delivered(2)
    await box.confirm(alice, *[each["id"] for each in posts[:2]])


async def test_reader_learns_which_messages_are_missing_and_where_they_are(
    edge: Edge, alice: Author, bob: Author, posts: list[Event]
) -> None:
    async with reading(edge, bob) as box:
        await catch_up(box, alice, posts)
        (gap,) = await gaps(box)
    assert (gap["topic"], gap["messages"]) == ("news", 3)
    path = f"/v1/events?kinds=1000&%23t=news&cursor={gap['cursor']}"
    found = (await edge.get(path, await edge.token(bob))).value["events"]
    assert [each["id"] for each in found] == [each["id"] for each in posts[2:]]
    assert found[-1]["seq"] == gap["last_seq"]


async def test_gap_is_named_again_until_the_reader_has_filled_it(
    edge: Edge, alice: Author, bob: Author, posts: list[Event]
) -> None:
    async with reading(edge, bob) as box:
        await catch_up(box, alice, posts)
        (gap,) = await gaps(box)
    async with reading(edge, bob) as box:
        assert await gaps(box) == [gap]
        await box.stream.send("FILLED", "main", "news", gap["last_seq"])
        await box.silence()
    async with reading(edge, bob) as box:
        assert not [command for command in await box.silence() if command[0] == "GAP"]


async def test_gap_that_grew_while_it_was_filled_keeps_its_rest(
    edge: Edge, alice: Author, bob: Author, posts: list[Event]
) -> None:
    async with reading(edge, bob, window=1) as box:
        (first,) = [event for event, _about in await box.delivered(1)]
        assert first["id"] == posts[0]["id"]
        (later,) = await send(edge, post(alice, "news", "later"))
        await box.stream.send("FILLED", "main", "news", later.value["seq"] - 1)
        await catch_up_rest(box, alice, posts)
        (gap,) = await gaps(box)
    path = f"/v1/events?kinds=1000&%23t=news&cursor={gap['cursor']}"
    found = (await edge.get(path, await edge.token(bob))).value["events"]
    assert [each["content"] for each in found] == ["later"]


async def catch_up_rest(box: Reading, alice: Author, posts: list[Event]) -> None:
    await box.confirm(alice, posts[0]["id"])
    await box.delivered(1)
    await box.confirm(alice, posts[1]["id"])


async def test_reader_that_is_there_learns_of_a_gap_when_it_has_caught_up(
    edge: Edge, alice: Author, bob: Author
) -> None:
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
    await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, await edge.token(bob))
    async with reading(edge, bob, window=1) as box:
        made = [post(alice, "news", str(number)) for number in range(3)]
        await send(edge, *made)
        await box.delivered(1)
        await catch_up_rest(box, alice, made)
        (gap,) = await gaps(box)
    assert gap["messages"] == 1


async def test_sender_sees_which_readers_were_left_out(
    edge: Edge, alice: Author, bob: Author, posts: list[Event]
) -> None:
    token = await edge.token(alice)
    shown = [(await edge.get(f"/v1/messages/{each['id']}", token)).value["not_queued"] for each in posts]
    left_out = [{"recipient": bob.node, "reason": "queue_full"}]
    assert shown == [[], [], left_out, left_out, left_out]


@pytest.mark.parametrize("arguments", [(), ("main", "news"), ("lab", "news", 1), ("main", 1, 1), ("main", "news", -1)])
async def test_malformed_end_of_a_gap_is_refused(edge: Edge, bob: Author, arguments: tuple[object, ...]) -> None:
    async with reading(edge, bob) as box:
        await box.stream.send("FILLED", *arguments)
        assert (await box.next("NOTICE"))[0] == "frame_malformed"
