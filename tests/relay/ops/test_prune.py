from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from posthouse.journal.digest import content_digest, digest_contents, digest_records
from posthouse.model.api import ArchivedRange
from posthouse.model.clock import FakeClock
from posthouse.model.event import Coordinate, encode_event
from posthouse.model.filters import Filter
from posthouse.model.lock_api import LockGrant
from posthouse.model.node import Role
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.ops import housekeeping as pruning
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.wire.lock_operations import Acquire
from tests.relay.accept.answers import accepted, code
from tests.relay.authors import ALICE, BOB, Author
from tests.relay.meshes.refusal import refused

ADMIN = Author(98)


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[RelayEngine]:
    settings = EngineSettings(tmp_path / "relay", Author(99).node, admins=(ADMIN.node,))
    started = await RelayEngine.start(settings, FakeClock())
    yield started
    await started.close()


async def archived(core: RelayEngine, from_seq: int, to_seq: int, *, has_contents: bool = True) -> ArchivedRange:
    """Return a range with digests as an archive computes them."""
    records = await core.store.journal(from_seq - 1, to_seq - from_seq + 1)
    _columns, rows = await core.store.feed("events", from_seq - 1, to_seq - from_seq + 1)
    events = [row[10].encode() for row in rows if row[0] <= to_seq and row[9] is None]
    contents = digest_contents(map(content_digest, events)) if has_contents else None
    return ArchivedRange(core.store.epoch, from_seq, to_seq, digest_records(records), contents, contents_version=2)


async def prune(core: RelayEngine, to_seq: int, from_seq: int = 1, *, has_contents: bool = True) -> int:
    given = await archived(core, from_seq, to_seq, has_contents=has_contents)
    pruned, oldest_seq = await core.prune(ADMIN.node, given)
    assert oldest_seq == to_seq + 1 == (await core.store.extent()).pruned_through + 1
    return pruned.records


async def test_pruned_events_lose_their_content_and_current_ones_keep_it(core: RelayEngine) -> None:
    normal, old, new = ALICE.event(), ALICE.event(10_002, content="old"), ALICE.event(10_002, content="new")
    for event in (normal, old, new):
        await core.accept(encode_event(event))
    last = accepted(await core.accept(BOB.raw())).seq or 0
    assert await prune(core, last - 1) == last - 1
    left = [stored.seq for stored in (await core.query(ALICE.node, [Filter()])).events]
    assert left == [last - 1, last]
    found = await core.address(ALICE.node, Coordinate(10_002, ALICE.node, ""))
    assert found.raw == encode_event(new)
    assert check_relay(core.settings.data_dir / "relay.db") == []


async def test_pruning_keeps_the_pointer_of_a_resource_although_its_event_was_replaced(core: RelayEngine) -> None:
    grant = await core.locks.ask(ALICE.node, Acquire("deploy", 60_000))
    assert isinstance(grant, LockGrant)
    fence = ("fence", "deploy", str(grant.token))
    for content in ("v1", "v2"):
        assert code(await core.accept(ALICE.raw(30_000, ("d", "x"), fence, content=content))) == "201"
    last = accepted(await core.accept(ALICE.raw(30_000, ("d", "x"), content="unfenced"))).seq or 0
    await prune(core, last)
    found = await core.pointer(BOB.node, "main", "deploy")
    assert b'"v2"' in found.raw
    left = [stored.raw for stored in (await core.query(ALICE.node, [Filter(kinds=frozenset({30_000}))])).events]
    assert not any(b'"v1"' in raw for raw in left)
    assert check_relay(core.settings.data_dir / "relay.db") == []


async def test_pruned_event_is_still_known(core: RelayEngine) -> None:
    raw = ALICE.raw()
    first = accepted(await core.accept(raw))
    await prune(core, first.seq or 0)
    again = accepted(await core.accept(raw))
    assert (again.duplicate, again.seq) == (True, first.seq)


async def test_wrong_digest_deletes_nothing(core: RelayEngine) -> None:
    last = accepted(await core.accept(ALICE.raw())).seq or 0
    with refused("digest_mismatch"):
        await core.prune(ADMIN.node, replace(await archived(core, 1, last), digest="0" * 64))
    with refused("digest_mismatch"):
        await core.prune(ADMIN.node, replace(await archived(core, 1, last), contents="0" * 64))
    assert (await core.store.extent()).pruned_through == 0
    assert len((await core.query(ALICE.node, [Filter()])).events) == 1


async def test_only_a_short_prefix_of_this_history_is_pruned(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = accepted(await core.accept(ALICE.raw())).seq or 0
    for from_seq, to_seq in ((2, last), (1, last + 1), (last, 1)):
        with refused("prune_range_invalid"):
            await core.prune(ADMIN.node, ArchivedRange(core.store.epoch, from_seq, to_seq, "0" * 64, None))
    monkeypatch.setattr(pruning, "MAX_RECORDS", last - 1)
    with refused("prune_range_invalid"):
        await prune(core, last)
    with refused("epoch_mismatch"):
        await core.prune(ADMIN.node, replace(await archived(core, 1, last - 1), epoch="0" * 32))


async def test_pruning_and_reading_the_journal_are_for_admins(core: RelayEngine) -> None:
    with refused("right_missing"):
        await core.prune(ALICE.node, await archived(core, 1, 1))
    with refused("right_missing"):
        await core.journal(ALICE.node)
    with refused("right_missing"):
        await core.feed(ALICE.node, "events")


async def test_memberships_survive_pruning_and_replay_starts_from_the_snapshot(core: RelayEngine) -> None:
    await core.administration.create_mesh(ALICE.node, "lab", name="alice")
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.READER)
    head = (await core.store.extent()).head
    assert await prune(core, head) == head
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "robert", Role.MEMBER)
    assert await asyncio.to_thread(check_relay, core.settings.data_dir / "relay.db") == []
    assert code(await core.accept(BOB.raw(1, ("mesh", "lab")))) == "201"


async def test_journal_is_read_by_cursor_and_a_pruned_cursor_is_refused(core: RelayEngine) -> None:
    for _ in range(5):
        await core.accept(ALICE.raw())
    first, cursor = await core.journal(ADMIN.node, limit=2)
    rest, end = await core.journal(ADMIN.node, after=cursor)
    assert [record.seq for record in first + rest] == list(range(1, len(first + rest) + 1))
    assert await core.journal(ADMIN.node, after=end) == ([], end)
    only, _ = await core.journal(ADMIN.node, types=["event.accepted"])
    assert {record.type for record in only} == {"event.accepted"}
    await prune(core, 4)
    with refused("cursor_pruned"):
        await core.journal(ADMIN.node, after=cursor)


async def test_cursor_of_a_query_outlives_pruning(core: RelayEngine) -> None:
    for number in range(4):
        await core.accept(ALICE.raw(10_500 + number))
    page = await core.query(BOB.node, [Filter()], limit=1)
    cursor = core.cursor(page.through_seq)
    await prune(core, (await core.store.extent()).head)
    rest = await core.query(BOB.node, [Filter()], cursor=cursor)
    assert len(rest.events) == 3
