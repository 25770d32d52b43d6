"""Whether an accepted event is current, fenced writes that would not be, and pointers over all authors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import decode_event
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.store.sqlite.store import FILE_NAME, RELAY
from posthouse.relay.wire.accept_results import Accepted, Answer, Declined, ReplacingAccepted
from tests.relay.authors import ALICE, Author
from tests.relay.locks.desk import Desk
from tests.relay.meshes.refusal import refused

LEASE_MS = 60_000
BEFORE_POINTERS = 2  # version of the relay's tables


def make_old(path: Path) -> None:
    """Take away what the migrations since then created."""
    db = apsw.Connection(str(path))
    for migration in reversed(RELAY.migrations[BEFORE_POINTERS:]):
        for kind, name in re.findall(r"CREATE (TABLE|INDEX) (\w+)", migration):
            db.execute(f"DROP {kind} IF EXISTS {name}")
        for table, column in re.findall(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", migration):
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    db.execute("CREATE INDEX events_by_id ON events (substr(id, 1, 8))")
    db.execute("UPDATE schema_versions SET version = ? WHERE component = 'relay'", (BEFORE_POINTERS,))
    db.close()


class Holder:
    """A node that locks `db` and writes under its fence."""

    def __init__(self, desk: Desk, number: int) -> None:
        self.desk = desk
        self.author = Author(number, desk.clock)
        self.token = 0

    @property
    def node(self) -> str:
        return self.author.node

    async def acquire(self) -> None:
        self.token = await self.desk.granted(self.node, "db", lease_ms=LEASE_MS)

    async def release(self) -> None:
        await self.desk.release(self.node, self.token, "db")

    async def write(self, content: str, *tags: tuple[str, ...], fenced: bool = True, **fields: Any) -> Answer:
        fence = [("fence", "db", str(self.token))] if fenced else []
        return await self.desk.core.accept(
            self.author.raw(30_000, ("d", "current"), *fence, *tags, content=content, **fields)
        )


@pytest.fixture
def alice(desk: Desk) -> Holder:
    return Holder(desk, 1)


@pytest.fixture
def bob(desk: Desk) -> Holder:
    return Holder(desk, 2)


def currency(answer: Answer) -> bool:
    assert isinstance(answer, ReplacingAccepted), answer
    return answer.current


async def pointed(desk: Desk, node: str, resource: str = "db") -> str:
    return decode_event((await desk.core.pointer(node, "main", resource)).raw).content


async def test_answers_say_whether_the_event_is_current(desk: Desk, alice: Holder) -> None:
    now_ns = desk.clock.wall_ns()
    newer = alice.author.raw(30_000, ("d", "x"), created_at_ns=now_ns)
    older = alice.author.raw(30_000, ("d", "x"), created_at_ns=now_ns - 1)
    assert currency(await desk.core.accept(newer)) is True
    assert currency(await desk.core.accept(older)) is False
    repeated = await desk.core.accept(newer)
    assert (repeated.status, currency(repeated)) == (200, True)
    assert currency(await desk.core.accept(alice.author.raw(10_000))) is True
    plain = await desk.core.accept(alice.author.raw(1))
    assert isinstance(plain, Accepted)
    assert not isinstance(plain, ReplacingAccepted)


async def test_of_one_list_only_the_newest_event_is_current(desk: Desk, alice: Holder) -> None:
    now_ns = desk.clock.wall_ns()
    events = [alice.author.raw(30_000, ("d", "x"), created_at_ns=now_ns + n) for n in (2, 1, 3)]
    assert [currency(answer) for answer in await desk.core.accept_many(events)] == [False, False, True]


async def test_fenced_write_that_would_not_become_current_is_refused(desk: Desk, alice: Holder) -> None:
    await alice.acquire()
    now_ns = desk.clock.wall_ns()
    assert currency(await alice.write("first", created_at_ns=now_ns)) is True
    late = await alice.write("clock is behind", created_at_ns=now_ns - 1)
    assert isinstance(late, Declined)
    assert (late.status, late.error.code, late.error.fields["created_at_ns"]) == (409, "not_newest", now_ns)
    assert await pointed(desk, alice.node) == "first"
    assert currency(await alice.write("again", created_at_ns=now_ns + 1)) is True
    assert currency(await alice.write("unfenced", created_at_ns=now_ns - 1, fenced=False)) is False


async def test_refused_write_does_not_use_up_a_strict_fence(desk: Desk, alice: Holder) -> None:
    await alice.acquire()
    now_ns = desk.clock.wall_ns()
    await alice.write("unfenced", created_at_ns=now_ns, fenced=False)
    strict = ("d", "current"), ("fence", "db", str(alice.token), "strict")
    late = await desk.core.accept(alice.author.raw(30_000, *strict, created_at_ns=now_ns - 1))
    assert isinstance(late, Declined)
    assert late.error.code == "not_newest"
    assert currency(await desk.core.accept(alice.author.raw(30_000, *strict, created_at_ns=now_ns + 1))) is True


async def test_pointer_follows_the_token_over_all_authors(desk: Desk, alice: Holder, bob: Holder) -> None:
    with refused("pointer_unknown"):
        await desk.core.pointer(alice.node, "main", "db")
    await alice.acquire()
    await alice.write("alice 1")
    await alice.write("alice 2")
    assert await pointed(desk, bob.node) == "alice 2"
    await alice.release()
    await bob.acquire()
    earlier_ns = desk.clock.wall_ns() - 3_600 * 10**9
    await bob.write("bob 1", created_at_ns=earlier_ns)  # the token decides, not the author's clock
    assert await pointed(desk, alice.node) == "bob 1"
    await alice.write("unfenced", fenced=False)
    assert await pointed(desk, alice.node) == "bob 1"
    with refused("pointer_unknown"):
        await desk.core.pointer(alice.node, "main", "other")


async def test_pointer_falls_back_when_its_event_expires(desk: Desk, alice: Holder) -> None:
    await alice.acquire()
    await alice.write("lasting")
    await alice.write("short", ("expiration", str(desk.clock.wall_ns() // 1_000_000_000 + 10)))
    assert await pointed(desk, alice.node) == "short"
    desk.clock.advance(11)
    assert await pointed(desk, alice.node) == "lasting"
    await desk.core.store.submit(lambda unit: unit.sweep_expired(desk.clock.wall_ns(), 10))
    assert await pointed(desk, alice.node) == "lasting"


async def test_pointer_of_a_closed_mesh_is_for_its_readers(desk: Desk, alice: Holder, bob: Holder) -> None:
    await desk.core.administration.create_mesh(alice.node, "lab")
    with refused("not_member"):
        await desk.core.pointer(bob.node, "lab", "db")
    with refused("pointer_unknown"):
        await desk.core.pointer(alice.node, "lab", "db")


@pytest.mark.sqlite
async def test_old_store_gets_its_pointers_when_it_is_opened(tmp_path: Path) -> None:
    clock = FakeClock()
    settings = EngineSettings(tmp_path, Author(99).node)
    core = await RelayEngine.start(settings, clock)
    desk = Desk(core, clock)
    alice = Holder(desk, 1)
    await alice.acquire()
    odd = 'builds/"ä"'
    assert isinstance(await alice.write("here"), Accepted)
    token = await desk.granted(alice.node, odd, lease_ms=LEASE_MS)
    fenced = alice.author.raw(30_000, ("d", "odd"), ("fence", odd, str(token)), content="there")
    assert isinstance(await core.accept(fenced), Accepted)
    await core.store.submit(lambda unit: unit.reindex())  # an old store indexed each event at once
    await core.close()
    make_old(tmp_path / FILE_NAME)
    core = await RelayEngine.start(settings, clock)
    for resource, content in (("db", "here"), (odd, "there")):
        assert decode_event((await core.pointer(ALICE.node, "main", resource)).raw).content == content
    await core.close()
    assert list(check_relay(tmp_path / FILE_NAME)) == []


async def test_rebuilding_the_indexes_keeps_the_pointers(desk: Desk, alice: Holder) -> None:
    await alice.acquire()
    await alice.write("one")
    await alice.write("two")
    await desk.core.store.submit(lambda unit: unit.reindex())
    assert await pointed(desk, alice.node) == "two"


async def test_resource_name_of_a_pointer_is_checked(desk: Desk, alice: Holder) -> None:
    with pytest.raises(PosthouseError) as refusal:
        await desk.core.pointer(alice.node, "main", "x" * 600)
    assert refusal.value.code == "resource_invalid"
