"""Subscriptions: stored matches, EOSE, live ones; no gap, no duplicate, ascending commit order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posthouse.relay.wire.accept_results import Committed
from tests.relay.edge import Author, Edge, Stream, running


def contents(commands: list[list[Any]]) -> list[str]:
    return [command[2]["content"] for command in commands if command[0] == "EVENT"]


async def live(stream: Stream, count: int) -> list[list[Any]]:
    """Return the next `count` events."""
    return [["EVENT", *await stream.expect("EVENT")] for _ in range(count)]


async def test_hello_comes_first_and_names_relay_and_challenge(edge: Edge) -> None:
    async with edge.stream() as stream:
        assert stream.hello["relay"] == edge.relay
        assert len(stream.hello["challenge"]) == 64
        assert "live" in stream.hello["features"]


async def test_authed_names_node_and_meshes(edge: Edge, author: Author) -> None:
    async with edge.stream() as stream:
        authed = await stream.authenticate(author)
    assert authed["node"] == author.node
    assert [mesh["mesh"] for mesh in authed["meshes"]] == ["main"]


async def test_commands_behind_auth_in_the_same_frame_are_those_of_the_node(edge: Edge, author: Author) -> None:
    async with edge.stream() as stream:
        proof = author.proof(edge.relay, ("challenge", stream.hello["challenge"]))
        await stream.send_list([["AUTH", proof], ["REQ", "s", {}], ["COUNT", "c"]])
        assert [(await stream.receive())[0] for _ in range(3)] == ["AUTHED", "EOSE", "COUNT"]


async def test_stored_then_eose_then_live(edge: Edge, author: Author) -> None:
    seqs = await edge.publish(*(author.event(content=f"stored {number}") for number in range(3)))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {}, {"kinds": [1]})
        stored = await stream.until("EOSE")
        assert contents(stored) == ["stored 0", "stored 1", "stored 2"]
        assert [command[3] for command in stored[:-1]] == seqs
        await edge.publish(author.event(content="live"), author.event(2, "other kind"), author.event(content="more"))
        assert contents(await live(stream, 2)) == ["live", "more"]


async def test_events_of_one_commit_come_in_one_frame(edge: Edge, author: Author) -> None:
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {"limit": 0})
        await stream.expect("EOSE")
        before = stream.frames
        await edge.publish(*(author.event(content=str(number)) for number in range(100)))
        assert contents(await live(stream, 100)) == [str(number) for number in range(100)]
        assert stream.frames - before == 1


async def test_cursor_of_eose_and_of_each_seq_resumes_without_gap(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(content=str(number)) for number in range(4)))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "a", {})
        cursor = (await stream.until("EOSE"))[-1][2]
        await edge.publish(author.event(content="missed"))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "b", {"cursor": cursor})
        assert contents(await stream.until("EOSE")) == ["missed"]


async def test_limit_gives_the_newest_in_ascending_order(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(content=str(number)) for number in range(10)))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {"limit": 3})
        assert contents(await stream.until("EOSE")) == ["7", "8", "9"]
        await edge.publish(author.event(content="10"))
        assert contents(await live(stream, 1)) == ["10"]
        await stream.send("REQ", "all", {"limit": 500})
        assert contents(await stream.until("EOSE")) == [str(number) for number in range(11)]


async def test_limit_with_a_cursor_gives_the_newest_after_it(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(content=str(number)) for number in range(4)))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "a", {"limit": 0})
        cursor = (await stream.expect("EOSE"))[1]
        await edge.publish(*(author.event(content=f"new {number}") for number in range(4)))
        await live(stream, 4)
        for limit, expected in ((2, ["new 2", "new 3"]), (9, [f"new {number}" for number in range(4)])):
            await stream.send("REQ", f"b{limit}", {"cursor": cursor, "limit": limit})
            assert contents(await stream.until("EOSE")) == expected


async def test_all_stored_events_come_in_pages(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(content=str(number)) for number in range(1_300)))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {})
        assert contents(await stream.until("EOSE")) == [str(number) for number in range(1_300)]


async def test_ephemeral_event_is_live_only(edge: Edge, author: Author) -> None:
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {})
        await stream.until("EOSE")
        await edge.publish(author.event(20_500, "now"))
        _, _, event, seq = (await live(stream, 1))[0]
        assert (event["content"], seq) == ("now", None)
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {})
        assert contents(await stream.until("EOSE")) == []


async def test_duplicate_is_not_pushed_again(edge: Edge, author: Author) -> None:
    event = author.event(content="once")
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {})
        await stream.until("EOSE")
        await edge.publish(event)
        await edge.publish(event)
        await edge.publish(author.event(content="then"))
        assert contents(await live(stream, 2)) == ["once", "then"]


async def test_several_filters_are_one_subscription_without_duplicates(edge: Edge, author: Author) -> None:
    both = author.event(1, "both", [("t", "x")])
    await edge.publish(both, author.event(2, "tag", [("t", "x")]), author.event(3, "none"))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {}, {"kinds": [1]}, {"#t": ["x"]})
        assert contents(await stream.until("EOSE")) == ["both", "tag"]
        await edge.publish(author.event(1, "again", [("t", "x")]), author.event(3, "no"), author.event(1, "end"))
        assert contents(await live(stream, 2)) == ["again", "end"]


async def test_close_ends_a_subscription_and_frees_its_id(edge: Edge, author: Author) -> None:
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {"limit": 0})
        await stream.expect("EOSE")
        await stream.send("REQ", "s", {"limit": 0})
        closed = await stream.expect("CLOSED")
        assert (closed[0], closed[1]["code"]) == ("s", "subscription_exists")
        await stream.send("CLOSE", "s")
        await stream.send("REQ", "s", {"limit": 0}, {"kinds": [2]})
        await stream.expect("EOSE")
        await edge.publish(author.event(1, "unwanted"), author.event(2, "wanted"))
        assert contents(await live(stream, 1)) == ["wanted"]
        await stream.send("CLOSE", "s")
        await stream.send("CLOSE", "s")
        assert await stream.notice() == "subscription_unknown"
    assert len(edge.server.context.live) == 0


async def test_count_returns_the_number_of_stored_matches(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(number % 2 + 1) for number in range(5)))
    async with edge.stream(author) as stream:
        await stream.send("COUNT", "c", {"kinds": [1]})
        assert await stream.expect("COUNT") == ["c", 3]
        await stream.send("COUNT", "d")
        assert await stream.expect("COUNT") == ["d", 5]


async def test_reading_needs_authentication_and_publishing_does_not(edge: Edge, author: Author) -> None:
    async with edge.stream() as stream:
        await stream.send("REQ", "s", {})
        assert (await stream.expect("CLOSED"))[1]["code"] == "authentication_required"
        await stream.send("COUNT", "c")
        assert (await stream.expect("CLOSED"))[1]["code"] == "authentication_required"
        await stream.send("EVENT", author.event())
        assert (await stream.expect("OK"))[1] is True


async def test_stored_then_live_without_gap_or_duplicate_while_four_writers_publish(edge: Edge) -> None:
    writers = [Author() for _ in range(4)]
    each = 250

    async def write(writer: Author) -> None:
        async with edge.stream() as stream:
            for number in range(each):
                await stream.send("EVENT", writer.event(content=f"{number}"))
            for _ in range(each):
                assert (await stream.expect("OK"))[1] is True

    async def read(delay: int, options: dict[str, Any]) -> list[tuple[int, str, str]]:
        reader = Author()
        await edge.offered(delay)
        async with edge.stream(reader) as stream:
            await stream.send("REQ", "s", options, {"kinds": [1]})
            seen: list[tuple[int, str, str]] = []
            while len(seen) < 4 * each:
                command = await stream.receive()
                assert command[0] in ("EVENT", "EOSE"), command
                if command[0] == "EVENT":
                    seen.append((command[3], command[2]["pubkey"], command[2]["content"]))
            return seen

    readers = [asyncio.create_task(read(delay, {})) for delay in (0, 1, 100, 300, 500, 700, 990)]
    await asyncio.gather(*(write(writer) for writer in writers))
    async with asyncio.timeout(60):
        for seen in await asyncio.gather(*readers):
            seqs = [seq for seq, _, _ in seen]
            assert seqs == sorted(set(seqs))
            for writer in writers:
                mine = [content for _, node, content in seen if node == writer.node]
                assert mine == [str(number) for number in range(each)]


async def test_commit_that_is_announced_after_a_page_saw_it_is_not_sent_twice(edge: Edge, author: Author) -> None:
    announced: list[Sequence[Committed]] = []
    edge.server.context.engine.listen(announced.append)
    await edge.publish(*(author.event(content=f"stored {number}") for number in range(3)))
    async with edge.stream(author) as stream:
        await stream.send("REQ", "all", {})
        await stream.send("REQ", "newest", {"limit": 2})
        assert len(contents(await stream.until("EOSE") + await stream.until("EOSE"))) == 5
        for batch in announced:
            edge.server.context.live.publish(batch)
        await edge.publish(author.event(content="live"))
        assert contents(await live(stream, 2)) == ["live", "live"]


async def test_limited_subscriptions_have_no_gap_while_writers_publish(edge: Edge) -> None:
    writer = Author()
    total = 600

    async def write() -> None:
        async with edge.stream() as stream:
            for start in range(0, total, 20):
                events = [writer.event(content=str(number)) for number in range(start, start + 20)]
                await stream.send_list([["EVENT", event] for event in events])
                for _ in events:
                    assert (await stream.expect("OK"))[1] is True

    async def read(delay: int, limit: int) -> None:
        await edge.offered(delay)
        async with edge.stream(Author()) as stream:
            await stream.send("REQ", "s", {"limit": limit})
            stored = contents(await stream.until("EOSE"))
            assert len(stored) <= limit
            seen = [int(content) for content in stored]
            while not seen or seen[-1] < total - 1:
                seen += [int(content) for content in contents(await live(stream, 1))]
            assert seen == list(range(seen[0], total))

    async with asyncio.timeout(60):
        await asyncio.gather(
            write(), *(read(delay, limit) for delay, limit in ((1, 0), (100, 5), (200, 50), (400, 500)))
        )


async def test_events_are_accepted_in_the_order_sent(edge: Edge, author: Author) -> None:
    async with edge.stream() as stream:
        events = [author.event(content="x" * (5_000 if number % 7 == 0 else 1)) for number in range(300)]
        for start in range(0, 300, 30):
            await stream.send_list([["EVENT", event] for event in events[start : start + 15]])
            for event in events[start + 15 : start + 30]:
                await stream.send("EVENT", event)
        answers = [await stream.expect("OK") for _ in events]
    seqs = {answer[0]: answer[2]["seq"] for answer in answers}
    ordered = [seqs[event["id"]] for event in events]
    assert ordered == sorted(ordered)


async def test_refused_events_are_answered_with_their_problem(edge: Edge, author: Author) -> None:
    async with edge.stream() as stream:
        broken = author.event() | {"sig": "0" * 128}
        await stream.send("EVENT", broken)
        event_id, is_accepted, problem = await stream.expect("OK")
        assert (event_id, is_accepted, problem["code"]) == (broken["id"], False, "signature_invalid")
        await stream.send("EVENT", {"id": 1})
        assert (await stream.expect("OK"))[:2] == [None, False]


async def test_member_that_is_removed_gets_nothing_more(edge: Edge, author: Author) -> None:
    token = await edge.token(author)
    await edge.post("/v1/meshes", {"name": "team"}, token)
    guest = Author()
    await edge.post("/v1/meshes/team/members", {"node": guest.node, "name": "guest", "role": "reader"}, token)
    async with edge.stream(guest) as stream:
        await stream.send("REQ", "s", {"limit": 0})
        await stream.expect("EOSE")
        await edge.publish(author.event(content="seen", tags=[("mesh", "team")]))
        assert contents(await live(stream, 1)) == ["seen"]
        await edge.send("DELETE", f"/v1/meshes/team/members?node={guest.node}", token=token)
        await edge.publish(author.event(content="hidden", tags=[("mesh", "team")]), author.event(content="main"))
        assert contents(await live(stream, 1)) == ["main"]


async def test_direct_message_is_pushed_to_its_two_nodes_only(edge: Edge, author: Author) -> None:
    friend, nosy = Author(), Author()
    async with edge.stream(author) as mine, edge.stream(friend) as theirs, edge.stream(nosy) as other:
        for stream in (mine, theirs, other):
            await stream.send("REQ", "s", {"limit": 0})
            await stream.expect("EOSE")
        message = author.event(1000, "sealed", [("p", friend.node), ("c", "m1"), ("mesh", "main")])
        await edge.publish(message, author.event(content="public"))
        assert contents(await live(mine, 2)) == ["sealed", "public"]
        assert contents(await live(theirs, 2)) == ["sealed", "public"]
        assert contents(await live(other, 1)) == ["public"]


async def test_subscription_whose_buffer_overflows_while_joining_reads_on_from_the_store(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", buffer_events=10) as edge:
        total = 1_500

        async def write() -> None:
            for start in range(0, total, 50):
                await edge.publish(*(author.event(content=str(number)) for number in range(start, start + 50)))

        writing = asyncio.create_task(write())
        async with edge.stream(author) as stream:
            seen: list[int] = []
            await stream.send("REQ", "s", {})
            while len(seen) < total:
                command = await stream.receive()
                if command[0] == "CLOSED":  # one frame of 50 may find the tiny buffer in use
                    assert command[2]["code"] == "reader_too_slow"
                    await stream.send("REQ", "s", {"cursor": command[3]})
                elif command[0] == "EVENT":
                    seen.append(int(command[2]["content"]))
            assert seen == list(range(total))
        await writing


async def test_large_events_come_in_parts_whatever_the_limit(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", buffer_bytes=1024 * 1024) as edge:
        for start in range(0, 120, 5):
            large = [author.event(content=f"{number} " + "x" * 120_000) for number in range(start, start + 5)]
            await edge.publish(*large)
        async with edge.stream(author) as stream:
            for options, first in (({}, 0), ({"limit": 100}, 20), ({"limit": 5}, 115)):
                await stream.send("REQ", "s", options)
                stored = [int(content.split()[0]) for content in contents(await stream.until("EOSE"))]
                assert stored == list(range(first, 120))
                await stream.send("CLOSE", "s")
        token = await edge.token(author)
        page = (await edge.get("/v1/events?limit=500", token)).value
        assert 1 <= len(page["events"]) < 120
        assert page["cursor"] is not None
        rest = (await edge.get(f"/v1/events?limit=500&cursor={page['cursor']}", token)).value
        assert len(page["events"]) + len(rest["events"]) == 120
