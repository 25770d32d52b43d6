"""Pages with many rows: what a page reads is bounded by what it shows, however much the stores have.

The measure is the work of SQLite in steps of its virtual machine, over every store of relay and daemon, not time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from posthouse.console import queue_page, team_page
from posthouse.console.upstream import Upstream
from posthouse.daemon import threads
from posthouse.daemon.outbox.outbox_rows import NewRow, SentBefore
from posthouse.keys import NodeKey
from posthouse.model.clock import system_clock
from posthouse.relay import reads
from tests.client.house import ADMIN, open_house
from tests.console.demo_team import Team
from tests.console.test_access import ask, token_of
from tests.daemon.hosts import host_at
from tests.daemon.test_inbox import item

PAGES = (
    "/data/team",
    "/data/conversations",
    "/data/queues",
    "/data/queues?state=open&status=done",
    "/data/queues?state=queued",
    "/data/locks",
    "/data/live",
    "/data/health",
)
FEW, MANY = 100, 600  # rows of inbox and outbox, and deliveries of each queue
BOUND = 40  # rows that the patched pages read at most
READERS = 4
BACKGROUND = 200  # steps of jobs that run beside a page


@contextmanager
def counted_steps() -> Iterator[Counter[str]]:
    """Count the steps of statements on all read-only connections that are opened in the block."""
    steps: Counter[str] = Counter()
    before: dict[tuple[int, int, str], int] = {}  # SQLite counts on while a prepared statement is used again

    def note(event: dict[str, Any]) -> None:
        db, sql, total = event["connection"], event["sql"], event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        if db.readonly("main"):
            prepared = (id(db), event["id"], sql)
            counted = before.get(prepared, 0)
            steps[sql] += total - counted if total > counted else total
            before[prepared] = total

    def watch(db: apsw.Connection) -> None:
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, note, id=note)

    apsw.connection_hooks.append(watch)
    try:
        yield steps
    finally:
        apsw.connection_hooks.remove(watch)


async def fill(team: Team, first: int, end: int) -> None:
    """Add rows to inbox and outbox, and deliveries to the queue of each reader."""
    assert team.admin is not None
    host, numbers = team.hosts["atlas"], range(first, end)
    await asyncio.gather(*(team.admin.send("#load", f"post {number}") for number in numbers))
    await host.mesh.inbox.put([item(10_000 + number, sender="other") for number in numbers])
    await host.post("/v1/inbox/seen", all=True)  # unread mail is counted message by message
    pattern = await host.mesh.outbox.find("pattern")
    event = await host.mesh.outbox.event_of(pattern)
    assert event is not None
    rows = [
        NewRow(f"{number:026d}", f"sent{number}", b"", f"{20_000 + number:064x}", event, pattern.destination)
        for number in numbers
    ]
    now_ns = system_clock().wall_ns()
    await host.mesh.outbox.add_sent(
        [SentBefore(row, number, now_ns) for number, row in zip(numbers, rows, strict=True)]
    )


async def steps_of_pages(team: Team, steps: Counter[str]) -> dict[str, int]:
    found = {}
    for path in PAGES:
        async with team.console(sample_s=3_600) as console:  # a new one remembers nothing
            headers = {"Authorization": f"Bearer {await token_of(console)}"}
            steps.clear()
            status, text, _ = await ask(console, "GET", path, headers=headers)
            assert status == 200, text
            found[path] = steps.total()
    return found


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (threads, "_TRAFFIC_ROWS"),
        (threads, "SCANNED_MAX"),
        (reads, "NEWEST_WINDOW"),
        (team_page, "_JOURNAL_PAGE"),
        (queue_page, "PAGE"),
    ):
        monkeypatch.setattr(module, name, BOUND)
    monkeypatch.setattr(Upstream, "start", _start_nothing)  # only pages read


async def _start_nothing(_upstream: Upstream) -> None:
    pass


async def test_what_a_page_reads_does_not_grow_with_the_stores(tmp_path: Path, small_bounds: None) -> None:
    with counted_steps() as steps:
        async with open_house(tmp_path) as house, host_at(house, "atlas") as host:
            admin = house.client(ADMIN)
            team = Team(tmp_path, house, {"atlas": host}, admin=admin)
            await admin.meshes.add_member("main", ADMIN.node, "operator", "admin")
            await admin.meshes.add_member("main", host.node, "atlas", "admin")
            await admin.meshes.create_topic("main", "load")
            for number in range(READERS):
                reader = house.client(NodeKey.generate())
                await admin.meshes.add_member("main", reader.key.node, f"reader{number}")
                await reader.meshes.subscribe("main", "load")
            await host.send(ADMIN.node, "a pattern", client_message_id="pattern")
            await fill(team, 0, FEW)
            few = await steps_of_pages(team, steps)
            await fill(team, FEW, MANY)
            many = await steps_of_pages(team, steps)
            queues = await admin.queues.all("main")
    assert few["/data/team"] > 0
    of_readers = [each for each in queues if each.recipient != ADMIN.node]
    assert [(each.depth, each.in_flight) for each in of_readers] == [(MANY, 0)] * READERS
    assert {path: (few[path], many[path]) for path in PAGES if many[path] > 1.5 * few[path] + BACKGROUND} == {}


async def test_queues_are_shown_page_by_page_the_fullest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_page, "PAGE", 2)
    async with open_house(tmp_path) as house, host_at(house, "atlas") as host:
        admin = house.client(ADMIN)
        await admin.meshes.add_member("main", ADMIN.node, "operator", "admin")
        for number in range(3):
            key = NodeKey.generate()
            await admin.meshes.add_member("main", key.node, f"reader{number}")
            for _ in range(number + 1):
                await admin.send(key.node, "hello")
        async with Team(tmp_path, house, {"atlas": host}).console(key=ADMIN) as console:
            headers = {"Authorization": f"Bearer {await token_of(console)}"}

            async def readers(path: str) -> tuple[list[str], bool]:
                _, text, _ = await ask(console, "GET", path, headers=headers)
                queues = text[: text.index("rows-head")]
                names = sorted((f"reader{n}" for n in range(3) if f"reader{n}" in queues), key=queues.index)
                return names, "Next queues" in queues

            assert await readers("/data/queues") == (["reader2", "reader1"], True)
            assert await readers("/data/queues?skip=2") == (["reader0"], False)
            assert await readers("/data/queues?skip=99") == (["reader2", "reader1"], True)
            assert await readers("/data/queues?skip=-1") == (["reader2", "reader1"], True)
