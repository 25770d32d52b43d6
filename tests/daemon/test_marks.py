"""Marks of readers: `wait` returns each message once, programs have cursors, and both survive restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.daemon import AsyncDaemonClient, DaemonClient
from posthouse.daemon.agents.marks import CONDITIONAL_MAX
from tests.client.waiting import PATIENCE_S
from tests.daemon.hosts import Host, make_host, restart, running
from tests.daemon.test_inbox import item


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    """A daemon without a relay: its inbox is filled directly."""
    made = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(made):
        yield made


async def put(host: Host, *numbers: int, **more: Any) -> None:
    await host.mesh.inbox.put([item(number, **more) for number in numbers])


async def waited(client: AsyncDaemonClient, **given: Any) -> list[str | None]:
    return [each.body for each in await client.wait(0, **given)]


async def test_wait_returns_a_message_once_even_if_it_stays_unread(host: Host) -> None:
    async with DaemonClient(host.settings.directory) as client:
        await put(host, 1, 2)
        assert await waited(client) == ["m1", "m2"]
        assert await waited(client) == []
        await put(host, 3)
        assert await waited(client) == ["m3"]
        assert [each.body for each in await client.inbox(unread=True)] == ["m1", "m2", "m3"]


async def test_wait_gives_the_rest_of_a_long_backlog_next_time(host: Host) -> None:
    async with DaemonClient(host.settings.directory) as client:
        await put(host, *range(1, 6))
        assert await waited(client, limit=2) == ["m1", "m2"]
        assert await waited(client, limit=2) == ["m3", "m4"]
        assert await waited(client, limit=2) == ["m5"]


async def test_the_mark_of_wait_survives_a_restart_of_the_daemon(host: Host) -> None:
    async with DaemonClient(host.settings.directory) as client:
        await put(host, 1)
        assert await waited(client) == ["m1"]
        await restart(host)
        assert await waited(client) == []
        await put(host, 2)
        assert await waited(client) == ["m2"]


async def test_a_peek_and_a_wait_that_lost_its_answer_leave_the_mark(host: Host) -> None:
    async with DaemonClient(host.settings.directory) as client:
        await put(host, 1)
        page = await client.wait(0, peek=True)
        assert [each.body for each in page] == ["m1"]
        assert await waited(client, peek=True) == ["m1"]
        await client.advance(page)
        assert await waited(client) == []


async def test_waiting_for_one_sender_passes_over_no_mail_of_another(host: Host) -> None:
    async with DaemonClient(host.settings.directory) as client:
        await put(host, 1, sender="ed25519:" + "1" * 64)
        await put(host, 2, sender="ed25519:" + "2" * 64)
        assert await waited(client, sender="ed25519:" + "2" * 64) == ["m2"]
        assert await waited(client, sender="ed25519:" + "2" * 64) == []
        assert await waited(client) == ["m1", "m2"]


async def test_each_agent_has_its_own_mark(host: Host) -> None:
    await host.post("/v1/agents", name="claude")
    marks = host.daemon.context.marks
    await put(host, 1)
    page = await host.get("/v1/inbox", reader="wait")
    await host.post("/v1/inbox/mark", mark=page["mark"], ids=[page["items"][0]["id"]])
    epoch = host.mesh.inbox.store.epoch
    assert await marks.position("", "wait", "main", epoch) == 1
    assert await marks.position("claude", "wait", "main", epoch) == 0


async def test_a_mark_never_moves_back(host: Host) -> None:
    await put(host, 1, 2, 3)
    items = (await host.get("/v1/inbox", reader="r"))["items"]
    for each in (items[2], items[0]):
        await host.post("/v1/inbox/mark", mark="r", ids=[each["id"]])
    assert (await host.get("/v1/inbox", reader="r"))["items"] == []


async def test_a_mark_of_a_lost_inbox_hides_nothing_in_the_new_one(host: Host) -> None:
    async with DaemonClient(host.settings.directory) as client:
        await put(host, 1, 2, 3)
        await client.wait(0)
        await host.down()
        host.mesh.directory.inbox.unlink()
        await host.up()
        await put(host, 4)
        assert await waited(client) == ["m4"]


async def test_a_consumer_gets_read_and_unread_mail_in_order_and_goes_on_where_it_stopped(host: Host) -> None:
    await put(host, 1, 2, 3)
    await host.post("/v1/inbox/seen", all=True)

    async def take(count: int) -> list[str | None]:
        got: list[str | None] = []
        async with asyncio.timeout(PATIENCE_S), DaemonClient(host.settings.directory) as client:
            async for each in client.consume("indexer"):
                got.append(each.body)
                if len(got) == count:
                    return got
        raise AssertionError("unreachable")

    assert await take(2) == ["m1", "m2"]
    # it ended before it asked for more, so the last message counts as unhandled
    assert await take(2) == ["m2", "m3"]
    await put(host, 4)
    assert await take(2) == ["m3", "m4"]


async def test_a_blocking_consumer_does_the_same(host: Host) -> None:
    await put(host, 1, 2)

    def take() -> list[str | None]:
        with DaemonClient(host.settings.directory) as client:
            consumed = client.consume("indexer")
            return [next(consumed).body, next(consumed).body]

    assert await asyncio.wait_for(asyncio.to_thread(take), PATIENCE_S) == ["m1", "m2"]


async def test_marks_with_conditions_are_bounded(host: Host) -> None:
    await put(host, 1)
    for number in range(CONDITIONAL_MAX + 5):
        await host.post("/v1/inbox/mark", mark=f"wait?{number:016x}", ids=[f"{1:026d}"])
    store = host.daemon.agents.store
    assert await store.pool.run(lambda db: db.execute("SELECT count(*) FROM marks").get) == CONDITIONAL_MAX


@pytest.mark.parametrize(
    ("query", "code"),
    [({"reader": "No Good"}, "parameter_invalid"), ({"reader": "r", "order": "newest"}, "parameter_invalid")],
)
async def test_a_malformed_reader_is_refused(host: Host, query: dict[str, str], code: str) -> None:
    answer = await host.get("/v1/inbox", **query)
    assert (answer.status, answer["error"]) == (400, code)


async def test_a_mark_is_moved_only_to_messages_that_exist(host: Host) -> None:
    answer = await host.post("/v1/inbox/mark", mark="r", ids=["nonsense"])
    assert (answer.status, answer["error"]) == (404, "inbox_item_unknown")
    await put(host, 1)
    answer = await host.post("/v1/inbox/mark", mark="../x", ids=[f"{1:026d}"])
    assert (answer.status, answer["error"]) == (400, "value_invalid")


async def test_mail_behind_a_page_of_failure_notices_ends_a_wait(host: Host) -> None:
    async with DaemonClient(host.settings.directory) as client:
        notices = [item(number)._replace(meta='{"failure":true}') for number in range(1, 6)]
        await host.mesh.inbox.put(notices)
        assert await waited(client, limit=2) == [], "notices alone wake no reader"
        await put(host, 6)
        assert await waited(client, limit=2) == ["m1", "m2"]
        assert await waited(client, limit=2) == ["m3", "m4"]
        assert await waited(client, limit=2) == ["m5", "m6"]
