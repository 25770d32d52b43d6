"""Successors: mail that a process has read and not answered comes again to the next process under its name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.daemon import AsyncDaemonClient, DaemonClient
from posthouse.daemon.agents.marks import Marks
from posthouse.keys import NodeKey
from posthouse.model.errors import error
from tests.daemon.hosts import Host, make_host, restart, running
from tests.daemon.test_inbox import item
from tests.daemon.wake.programs import Program, Start, programs

SENDER = NodeKey.generate().node


@pytest.fixture
def start() -> Iterator[Start]:
    with programs() as given:
        yield given


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    made = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(made):
        yield made


@pytest.fixture
async def claude(host: Host) -> AsyncIterator[AsyncDaemonClient]:
    await host.post("/v1/agents", name="claude")
    client = AsyncDaemonClient(DaemonClient(host.settings.directory).place, agent="claude")
    yield client
    await client.close()


async def register(host: Host, program: Program) -> str:
    return str((await host.post("/v1/agents", name="claude", program="claude-code", pid=program.pid))["name"])


async def put(host: Host, *numbers: int, **fields: Any) -> None:
    mailed = {"to_agent": "claude", "agents": ("claude",), **fields}
    await host.mesh.inbox.put([item(number, sender=SENDER)._replace(**mailed) for number in numbers])


async def unread(client: AsyncDaemonClient) -> list[tuple[str | None, bool]]:
    return [(each.body, each.read_before is not None) for each in await client.inbox(unread=True)]


async def test_unanswered_mail_of_an_ended_process_comes_again_once(
    host: Host, claude: AsyncDaemonClient, start: Start
) -> None:
    first, second, third = start(), start(), start()
    assert await register(host, first) == "claude"
    await put(host, 1, 2, 3)
    page = await claude.wait(0)
    await claude.seen([each.id for each in page[:2]])
    await claude.send(SENDER, "done", reply_to_id=page[0].message_id)
    first.kill()
    assert await register(host, second) == "claude"
    assert await unread(claude) == [("m2", True), ("m3", False)]
    assert [each.body for each in await claude.wait(0)] == ["m2", "m3"]
    await claude.seen([each.id for each in page])
    second.kill()
    assert await register(host, third) == "claude"
    assert await unread(claude) == [("m3", True)]


async def test_the_predecessor_is_known_after_a_restart_of_the_daemon(
    host: Host, claude: AsyncDaemonClient, start: Start
) -> None:
    first, second = start(), start()
    await register(host, first)
    await put(host, 1)
    await claude.seen([each.id for each in await claude.inbox()])
    first.kill()
    await restart(host)
    await register(host, second)
    assert await unread(claude) == [("m1", True)]


async def test_mail_of_the_running_process_topics_and_mail_read_without_a_process_stay_read(
    host: Host, claude: AsyncDaemonClient, start: Start
) -> None:
    await put(host, 1)
    await claude.seen([each.id for each in await claude.inbox()])
    first, second = start(), start()
    await register(host, first)
    await put(host, 2, topic="news", to_agent="")
    await put(host, 3)
    await claude.seen([each.id for each in await claude.inbox(unread=True)])
    assert await register(host, first) == "claude"
    assert await unread(claude) == []
    first.kill()
    await register(host, second)
    assert await unread(claude) == [("m3", True)]


async def test_mail_never_becomes_unread_behind_a_mark_that_could_not_be_moved(
    host: Host, claude: AsyncDaemonClient, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_given: object) -> None:
        raise error("store_full", path="agents.db", reason="the disk is full")

    first, second = start(), start()
    await register(host, first)
    await put(host, 1)
    page = await claude.wait(0)
    await claude.seen([page[0].id])
    first.kill()
    with monkeypatch.context() as patched:
        patched.setattr(Marks, "rewind_wait", fail)
        refused = await host.post("/v1/agents", name="claude", program="claude-code", pid=second.pid)
    assert refused["error"] == "store_full"
    assert await unread(claude) == [], "no wait would show it"
