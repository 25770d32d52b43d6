"""Threads: found from any message, over inbox and outbox, with subject, participants and the budget left."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.daemon import threads
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.transitions import OUTBOX
from posthouse.daemon.threads import SUBJECT_MAX_CHARACTERS, THREAD_MAX, subject_of
from posthouse.model.clock import FakeClock, format_utc
from posthouse.model.limits import SECOND_NS
from tests.client.waiting import until
from tests.daemon.hosts import Host, eventually, make_host, running
from tests.daemon.old_stores import make_old_store
from tests.daemon.test_inbox import item


@pytest.fixture
async def thread(alice: Host, bob: Host) -> list[str]:
    """The message ids of a question of alice, bob's answer, and alice's answer to that."""
    first = (await alice.send(bob.node, "\n  Shall we deploy?\nIt is late.", client_message_id="q"))["message_id"]
    await bob.until_bodies(1)
    second = (await bob.send(alice.node, "yes", reply_to_id=first))["message_id"]
    await alice.until_bodies(1)
    third = (await alice.send(bob.node, "done", reply_to_id=second))["message_id"]
    await bob.until_bodies(2)
    await alice.send(bob.node, "something else")
    await bob.until_bodies(3)
    return [first, second, third]


async def test_a_thread_is_found_from_each_of_its_messages_on_both_hosts(
    alice: Host, bob: Host, thread: list[str]
) -> None:
    for host in (alice, bob):
        for message_id in thread:
            found = await host.get(f"/v1/threads/{message_id}")
            assert [each["message_id"] for each in found["messages"]] == thread
            assert [each["body"] for each in found["messages"]][1:] == ["yes", "done"]
            assert (found["subject"], found["is_complete"], found["id"]) == ("Shall we deploy?", True, thread[0])
            assert {each["node"] for each in found["participants"]} == {alice.node, bob.node}
    assert (await alice.get("/v1/threads/q"))["id"] == thread[0]


async def test_a_thread_shows_the_budget_that_is_left(alice: Host, thread: list[str]) -> None:
    left = (await alice.get(f"/v1/threads/{thread[0]}"))["budget"]
    assert 0 < left["hops_left"] < 20 and 0 < left["calls_left"] < 100 and left["expires_at"].endswith("Z")


async def test_the_inbox_is_filtered_by_thread(bob: Host, thread: list[str]) -> None:
    items = (await bob.get("/v1/inbox", thread=thread[1], order="oldest"))["items"]
    assert [each["message_id"] for each in items] == [thread[0], thread[2]]
    assert (await bob.post("/v1/inbox/seen", thread=thread[0]))["count"] == 2
    assert [each["body"] for each in (await bob.get("/v1/inbox", unread="true"))["items"]] == ["something else"]


async def test_a_thread_whose_beginning_is_not_here_says_so(tmp_path: Path) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        lost = "f" * 64
        await host.mesh.inbox.put([item(1)._replace(reply_to_id=lost), item(2)._replace(reply_to_id=lost)])
        found = await host.get(f"/v1/threads/{item(1).message_id}")
        assert ([each["body"] for each in found["messages"]], found["is_complete"]) == (["m1", "m2"], False)
        answer = await host.get("/v1/threads/nonsense")
        assert (answer.status, answer["error"]) == (404, "inbox_item_unknown")
        assert (await host.get(f"/v1/threads/{'e' * 64}")).status == 404


async def test_a_very_long_thread_is_shown_in_part(tmp_path: Path) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        first = item(1)
        rest = [item(n)._replace(reply_to_id=first.message_id) for n in range(2, THREAD_MAX + 20)]
        await host.mesh.inbox.put([first, *rest])
        found = await host.get(f"/v1/threads/{first.message_id}")
        assert (len(found["messages"]), found["is_complete"]) == (THREAD_MAX, False)


async def test_an_outbox_from_before_threads_knows_what_its_rows_answer(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    event = msgspec.json.encode({"id": "x", "tags": [["p", "n"], ["e", "a" * 64], ["c", "1"]]}).hex()
    columns = "id, client_message_id, request_fingerprint, event_id, event, destination, enqueued_at_ns, status"
    rows = f"('1', 'c1', x'00', 'x', x'{event}', 'n', 1, 'dead', 1), ('2', 'c2', x'00', 'y', x'ff', 'n', 1, 'dead', 1)"
    make_old_store(path, OUTBOX, 4, f"INSERT INTO outbox ({columns}, payload_bytes) VALUES {rows}")
    outbox = Outbox(path, "main", FakeClock())
    try:
        kept: Any = await outbox.store.pool.run(lambda db: list(db.execute("SELECT reply_to_id FROM outbox")))
        assert kept == [("a" * 64,), (None,)]
    finally:
        outbox.close()


@given(st.one_of(st.none(), st.text()))
def test_a_subject_is_one_short_line(body: str | None) -> None:
    subject = subject_of(body)
    assert len(subject) <= SUBJECT_MAX_CHARACTERS and len(subject.splitlines()) <= 1


async def test_answers_arrive_in_a_thread_in_any_order(tmp_path: Path) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        answer = item(2)._replace(reply_to_id=item(1).message_id)
        for each in (answer, item(1)):
            await host.mesh.inbox.put([each])
        found = await eventually(lambda: host.get(f"/v1/threads/{item(2).message_id}"), lambda said: said.status == 200)
        assert ([each["body"] for each in found["messages"]], found["is_complete"]) == (["m1", "m2"], True)


async def test_threads_are_listed_by_their_newest_message_page_by_page(
    alice: Host, bob: Host, thread: list[str]
) -> None:
    first = await alice.get("/v1/threads", limit=1)
    assert [(each["subject"], each["message_count"]) for each in first["items"]] == [("something else", 1)]
    second = await alice.get("/v1/threads", limit=1, before=first["next"])
    [listed] = second["items"]
    assert (listed["id"], listed["subject"], listed["message_count"]) == (thread[0], "Shall we deploy?", 3)
    assert (listed["last"]["message_id"], listed["last"]["body"], listed["last"]["is_own"]) == (thread[2], "done", True)
    assert listed["budget"]["calls_left"] > 0
    assert second["next"] is None
    assert (await alice.get("/v1/threads", before="yesterday"))["error"] == "parameter_invalid"


async def test_a_thread_says_how_far_each_message_has_come(alice: Host, bob: Host, thread: list[str]) -> None:
    def states(said: Any) -> list[str]:
        return [each["state"] for each in said["messages"]]

    def is_confirmed(said: Any) -> bool:
        return states(said)[2] == "confirmed"

    found = await eventually(lambda: alice.get(f"/v1/threads/{thread[0]}"), is_confirmed)
    assert states(found) == ["answered", "answered", "confirmed"]
    assert states(await bob.get(f"/v1/threads/{thread[0]}")) == ["answered", "answered", "unread"]
    await bob.post("/v1/inbox/seen", all=True)
    assert states(await bob.get(f"/v1/threads/{thread[0]}"))[2] == "read"


async def test_a_thread_says_which_messages_expect_an_answer(alice: Host, bob: Host) -> None:
    asked = (await alice.send(bob.node, "Shall we deploy?"))["message_id"]
    await alice.post("/v1/messages/withdraw", id=asked)
    await bob.until_bodies(2)
    await alice.mesh.inbox.put([item(1, sender=alice.node)._replace(meta='{"failure":true}')])

    async def expecting(host: Host) -> dict[bool, int]:
        items = (await host.get("/v1/threads"))["items"]
        return Counter(each["last"]["expects_answer"] for each in items)

    assert await expecting(alice) == {False: 3}  # the withdrawn question, its withdrawal and the report of a failure
    assert await expecting(bob) == {False: 2}
    first = (await alice.send(bob.node, "Which colour?"))["message_id"]
    assert await expecting(alice) == {True: 1, False: 3}
    await alice.send(bob.node, "Which colour and size?", supersedes=first)
    assert await expecting(alice) == {True: 1, False: 4}, "the newer question replaces the first"


async def test_a_message_expects_no_answer_once_the_time_is_over_until_which_it_counts(tmp_path: Path) -> None:
    clock = FakeClock()
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a", clock=clock)
    async with running(host):
        await host.add_agent("ann")
        until = format_utc(clock.wall_ns() + 60 * SECOND_NS)
        asked = (await host.send("ann", "Shall we go now?", valid_until=until))["message_id"]

        async def expects_answer() -> bool:
            [message] = (await host.get(f"/v1/threads/{asked}"))["messages"]
            return bool(message["expects_answer"])

        assert await expects_answer()
        clock.advance(60)
        assert not await expects_answer()


async def test_traffic_counts_who_wrote_to_whom_since_a_time(alice: Host, bob: Host, thread: list[str]) -> None:
    ann = await alice.add_agent("ann")
    await alice.add_agent("ben")
    await ann.send("ben", "a word")
    counts = {
        (each["sender"], each["from_agent"], each["to"], each["to_agent"]): each["count"]
        for each in (await alice.get("/v1/traffic"))["items"]
    }
    assert counts == {
        (alice.node, "", bob.node, ""): 3,
        (bob.node, "", alice.node, ""): 1,
        (alice.node, "ann", alice.node, "ben"): 1,
    }
    assert (await alice.get("/v1/traffic", since="2100-01-01T00:00:00Z"))["items"] == []


async def test_traffic_says_from_when_on_it_counts_if_there_is_more_than_it_reads(
    alice: Host, bob: Host, thread: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "2020-01-01T00:00:00.000Z"
    assert (await alice.get("/v1/traffic", since=asked))["since"] == asked
    monkeypatch.setattr(threads, "_TRAFFIC_ROWS", 2)
    said = await alice.get("/v1/traffic", since=asked)
    newest = (await alice.get("/v1/outbox", limit=2))["items"]
    assert said["since"] == newest[-1]["enqueued_at"] > asked
    assert [(each["to"], each["count"]) for each in said["items"]] == [(bob.node, 2)]


async def test_agents_show_their_oldest_unread_message(alice: Host) -> None:
    ann = await alice.add_agent("ann")
    await alice.send("ann", "first")
    await ann.until_bodies(1)
    [listed] = (await alice.get("/v1/agents"))["items"]
    [item] = (await ann.get("/v1/inbox"))["items"]
    assert (listed["unread"], listed["oldest_unread_at"]) == (1, item["received_at"])
    await ann.post("/v1/inbox/seen", all=True)
    [listed] = (await alice.get("/v1/agents"))["items"]
    assert (listed["unread"], listed["oldest_unread_at"]) == (0, None)


async def test_a_wait_for_a_thread_ends_with_an_answer_that_comes_meanwhile(tmp_path: Path) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        asked = await ann.send("ben", "is it green?")
        await ben.until_bodies(1)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ann.get("/v1/inbox", thread=asked["message_id"], reader="wait", wait_s=10))
            await until(lambda: host.daemon.context.waiters.count == 1)
            await ben.send("ann", "about something else")
            await ben.send("ann", "it is", reply_to_id=asked["message_id"])
        assert [each["body"] for each in waiting.result()["items"]] == ["it is"]
