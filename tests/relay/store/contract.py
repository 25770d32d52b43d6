"""The contract of a relay's store: what every implementation of RelayStore has to do.

An implementation subclasses StoreContract and gives a `store` fixture. The oracle of queries is the model's own
Filter.matches over everything that was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Coordinate, Event, decode_event
from posthouse.model.filters import Filter
from posthouse.model.node import Role
from posthouse.relay.store.event_rows import EventRow, Page, Query, Scope, event_row
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.mesh_rows import AccessRow, InviteRow, MemberRow, MeshRow, Verdict
from tests.relay.authors import ALICE, BOB, CAROL

R = TypeVar("R")
WAIT_S = 20
ALL = Scope(ALICE.node, None)
ODD_D = ["", "/", "a/b", "/history", "a:b:c", ":", "100%", "%2F", "é☕", "𝄞", ".", "..", " ", "a\x00b", "x" * 2_000]


async def write(store: RelayStore, work: Callable[[Unit], R]) -> R:
    """Run one unit of work, bounded in time."""
    return await asyncio.wait_for(store.submit(work), WAIT_S)


async def add(store: RelayStore, *events: Event) -> list[int]:
    """Write events in one unit."""
    rows = [event_row(event, event.canonical()) for event in events]
    return await write(store, lambda unit: unit.add_events(rows))


async def read_all(store: RelayStore, query: Query) -> list[Event]:
    """Follow the pages of a query to their end."""
    events: list[Event] = []
    page = await store.query(query)
    for _ in range(1_000):
        events += contents(page)
        if page.is_end:
            return events
        page = await store.query(Query(query.filters, query.scope, page.through_seq, query.limit, query.is_descending))
    raise AssertionError("the pages have no end")


def contents(page: Page) -> list[Event]:
    """Return the events of a page."""
    return [decode_event(stored.raw) for stored in page.events]


def ids(events: Sequence[Event]) -> list[str]:
    """Return the ids of events."""
    return [event.id for event in events]


def _add_one(row: EventRow, unit: Unit) -> list[int]:
    return unit.add_events([row])


class StoreContract:
    """Behaviour of every store."""

    async def test_events_get_the_seqs_of_their_records_without_a_gap(self, store: RelayStore) -> None:
        first = await add(store, ALICE.event(), ALICE.event())
        second = await add(store, BOB.event())
        assert [*first, *second] == [1, 2, 3]
        records = await store.journal(0, 10)
        assert [(record.seq, record.type) for record in records] == [(seq, "event.accepted") for seq in (1, 2, 3)]

    async def test_records_of_a_range_are_read_newest_first(self, store: RelayStore) -> None:
        await add(store, *(ALICE.event() for _ in range(5)))
        assert [each.seq for each in await store.newest_journal(1, 4, 2)] == [4, 3]
        assert [each.seq for each in await store.newest_journal(1, 4, 9, ["event.accepted"])] == [4, 3, 2]
        assert await store.newest_journal(0, 5, 9, ["refused"]) == []

    async def test_keys_of_events_are_those_that_match_with_and_without_content(self, store: RelayStore) -> None:
        first, other, note = ALICE.event(1), BOB.event(1), ALICE.event(7)
        elsewhere = ALICE.event(1, ("mesh", "other"))
        await add(store, first, other, note, elsewhere)
        await write(store, lambda unit: unit.erase(unit.find_contents([note.id]), ALICE.node, "deleted"))

        async def keys(after: int = 0, through: int = 4, **wanted: Any) -> list[str]:
            rows = await store.event_keys(Filter(mesh="main", **wanted), after, through)
            return sorted(id_.hex() for _at_ns, id_ in rows)

        assert await keys() == sorted([first.id, other.id, note.id])
        assert await keys(after=1, through=2) == [other.id]
        assert await keys(kinds=frozenset({7})) == [note.id]
        assert await keys(authors=frozenset({BOB.node})) == [other.id]
        assert await keys(since_ns=note.created_at_ns, authors=frozenset({ALICE.node})) == [note.id]
        assert await keys(until_ns=first.created_at_ns, authors=frozenset({ALICE.node})) == [first.id]
        assert await store.event_keys(Filter(mesh="main"), 0, 1) == [(first.created_at_ns, bytes.fromhex(first.id))]

    async def test_unit_that_fails_leaves_nothing_and_gives_its_seqs_back(self, store: RelayStore) -> None:
        event = ALICE.event()

        def fail(unit: Unit) -> None:
            unit.add_events([event_row(event, event.canonical())])
            raise LookupError("changed its mind")

        with pytest.raises(LookupError):
            await write(store, fail)
        assert await store.known([event.id]) == {}
        assert await read_all(store, Query([Filter()], ALL)) == []
        assert await add(store, BOB.event()) == [1]

    async def test_units_are_committed_in_the_order_they_were_submitted(self, store: RelayStore) -> None:
        events = [ALICE.event() for _ in range(50)]
        rows = [event_row(event, event.canonical()) for event in events]
        futures = [store.submit(partial(_add_one, row)) for row in rows]
        seqs = await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)
        assert [seq for (seq,) in seqs] == list(range(1, 51))

    async def test_known_tells_the_seq_of_accepted_events_only(self, store: RelayStore) -> None:
        kept, other = ALICE.event(), ALICE.event()
        (seq,) = await add(store, kept)
        assert await store.known([kept.id, other.id]) == {kept.id: seq}
        assert await write(store, lambda unit: unit.known([kept.id, other.id])) == {kept.id: seq}

    async def test_event_is_served_as_it_was_written(self, store: RelayStore) -> None:
        event = ALICE.event(7, ("t", "é☕"), ("x", "a\x00b"), content='"\\\x01\n𝄞')
        await add(store, event)
        found = await store.event(event.id, ALL)
        assert found is not None
        assert decode_event(found.raw) == event

    async def test_pages_are_complete_and_in_commit_order(self, store: RelayStore) -> None:
        events = [ALICE.event(1, ("t", str(number % 3))) for number in range(100)]
        await add(store, *events)
        wanted = Filter(tags={"t": frozenset({"1", "2"})})
        expected = [event.id for event in events if wanted.matches(event)]
        for limit in (1, 7, 66, 67, 500):
            assert ids(await read_all(store, Query([wanted], ALL, limit=limit))) == expected
            descending = await read_all(store, Query([wanted], ALL, limit=limit, is_descending=True))
            assert ids(descending) == expected[::-1]

    async def test_full_page_that_holds_the_last_match_is_the_end(self, store: RelayStore) -> None:
        await add(store, *(ALICE.event() for _ in range(5)), BOB.event(2))
        page = await store.query(Query([Filter(kinds=frozenset({1}))], ALL, limit=5))
        assert (len(page.events), page.is_end, page.through_seq) == (5, True, 6)

    async def test_page_goes_on_after_the_seq_it_is_complete_through(self, store: RelayStore) -> None:
        await add(store, *(ALICE.event() for _ in range(10)))
        page = await store.query(Query([Filter()], ALL, limit=4))
        assert ([stored.seq for stored in page.events], page.through_seq, page.is_end) == ([1, 2, 3, 4], 4, False)
        after = await store.query(Query([Filter()], ALL, 4, limit=4))
        assert [stored.seq for stored in after.events] == [5, 6, 7, 8]
        before = await store.query(Query([Filter()], ALL, 4, limit=2, is_descending=True))
        assert [stored.seq for stored in before.events] == [3, 2]

    async def test_filters_of_one_query_yield_each_event_once(self, store: RelayStore) -> None:
        events = [ALICE.event(1 + number % 3, ("t", str(number % 4))) for number in range(60)]
        await add(store, *events)
        filters = [Filter(kinds=frozenset({1})), Filter(tags={"t": frozenset({"0"})})]
        expected = [event.id for event in events if any(wanted.matches(event) for wanted in filters)]
        for limit in (1, 5, 500):
            assert ids(await read_all(store, Query(filters, ALL, limit=limit))) == expected
        assert await store.count(filters, ALL) == len(expected)

    async def test_direct_message_is_shown_to_its_sender_and_recipient_only(self, store: RelayStore) -> None:
        message = ALICE.message(BOB.node)
        confirmation = BOB.event(1001, ("e", message.id), ("p", ALICE.node))
        await add(store, message, confirmation)
        for author in (ALICE, BOB):
            found = await read_all(store, Query([Filter()], Scope(author.node, None)))
            assert ids(found) == [message.id, confirmation.id]
        scope = Scope(CAROL.node, None)
        assert await read_all(store, Query([Filter(ids=frozenset({message.id}))], scope)) == []
        assert await store.event(message.id, scope) is None
        assert await store.count([Filter()], scope) == 0

    async def test_nothing_is_shown_of_a_mesh_outside_the_scope(self, store: RelayStore) -> None:
        inside, outside = ALICE.event(30_000, ("mesh", "a"), ("d", "x")), ALICE.event(1, ("mesh", "b"))
        await add(store, inside, outside)
        scope = Scope(BOB.node, frozenset({"a"}))
        assert ids(await read_all(store, Query([Filter()], scope))) == [inside.id]
        assert await store.event(outside.id, scope) is None
        assert await store.count([Filter()], Scope(BOB.node, frozenset())) == 0
        assert await store.current(Coordinate(30_000, ALICE.node, "x"), Scope(BOB.node, frozenset({"b"}))) is None

    @pytest.mark.parametrize("d", ODD_D)
    async def test_address_finds_any_d(self, store: RelayStore, d: str) -> None:
        others = [ALICE.event(30_000, ("d", d + "/")), ALICE.event(30_001, ("d", d)), BOB.event(30_000, ("d", d))]
        versions = [ALICE.event(30_000, ("d", d), content=str(number)) for number in range(3)]
        await add(store, *others, *versions)
        coordinate = Coordinate(30_000, ALICE.node, d)
        found = await store.current(coordinate, ALL)
        assert found is not None
        assert decode_event(found.raw).id == versions[-1].id
        page = await store.history(coordinate, Query((), ALL))
        assert ids(contents(page)) == ids(versions)

    async def test_replaceable_event_without_d_has_the_empty_one(self, store: RelayStore) -> None:
        event = ALICE.event(10_002, content="profile")
        await add(store, event)
        found = await store.current(Coordinate(10_002, ALICE.node, ""), ALL)
        assert found is not None
        assert decode_event(found.raw) == event

    async def test_older_event_that_arrives_later_does_not_replace(self, store: RelayStore) -> None:
        newer = ALICE.event(10_002, created_at_ns=2_000)
        older = ALICE.event(10_002, created_at_ns=1_000)
        await add(store, newer)
        await add(store, older)
        found = await store.current(Coordinate(10_002, ALICE.node, ""), ALL)
        assert found is not None
        assert decode_event(found.raw) == newer
        assert ids(await read_all(store, Query([Filter()], ALL))) == [newer.id, older.id]

    async def test_expired_event_is_not_served_and_the_older_one_is_current_again(
        self, store: RelayStore, clock: FakeClock
    ) -> None:
        expiration = clock.wall_ns() // 1_000_000_000 + 60
        old = ALICE.event(10_002, content="old")
        new = ALICE.event(10_002, ("expiration", str(expiration)), content="new")
        await add(store, old, new)
        coordinate = Coordinate(10_002, ALICE.node, "")
        clock.advance(60)
        for _ in ("before the sweep", "after it"):
            found = await store.current(coordinate, ALL)
            assert found is not None
            assert decode_event(found.raw) == old
            assert await store.event(new.id, ALL) is None
            assert ids(await read_all(store, Query([Filter()], ALL))) == [old.id]
            await write(store, lambda unit: unit.sweep_expired(clock.wall_ns(), 10))

    async def test_swept_event_stays_known(self, store: RelayStore, clock: FakeClock) -> None:
        event = ALICE.event(1, ("expiration", str(clock.wall_ns() // 1_000_000_000 + 1)))
        (seq,) = await add(store, event)
        assert await write(store, lambda unit: unit.sweep_expired(clock.wall_ns(), 10)) == 0
        clock.advance(2)
        assert await write(store, lambda unit: unit.sweep_expired(clock.wall_ns(), 10)) == 1
        assert await write(store, lambda unit: unit.sweep_expired(clock.wall_ns(), 10)) == 0
        assert await store.known([event.id]) == {event.id: seq}

    async def test_rows_of_meshes_come_back_as_they_were_written(self, store: RelayStore) -> None:
        mesh = MeshRow("lab", False, ALICE.node, 5)
        member = MemberRow("lab", BOB.node, "bob", Role.READER)
        access = AccessRow("lab", "*", Verdict.ALLOW, Verdict.DENY, Verdict.ALLOW)

        def fill(unit: Unit) -> None:
            unit.save_mesh(mesh)
            unit.save_member(MemberRow("lab", BOB.node, "robert", Role.ADMIN))
            unit.save_member(member)
            unit.save_access(access)
            unit.save_topic("lab", "a.b", ALICE.node)
            unit.save_subscription("lab", BOB.node, "a.>")
            unit.save_block("lab", BOB.node, CAROL.node)

        await write(store, fill)
        rows = await store.mesh_rows()
        assert (rows.meshes, rows.members, rows.access) == ([mesh], [member], [access])
        assert [(topic.mesh, topic.topic, topic.creator) for topic in rows.topics] == [("lab", "a.b", ALICE.node)]
        assert rows.subscriptions == [("lab", BOB.node, "a.>")]
        assert rows.blocks == [("lab", BOB.node, CAROL.node)]

    async def test_name_belongs_to_one_member_of_a_mesh(self, store: RelayStore) -> None:
        def fill(unit: Unit) -> None:
            unit.save_mesh(MeshRow("lab", False, ALICE.node, 5))
            unit.save_member(MemberRow("lab", ALICE.node, "x", Role.ADMIN))
            unit.save_member(MemberRow("lab", BOB.node, "x", Role.MEMBER))

        with pytest.raises(Exception, match=r"(?i)unique"):
            await write(store, fill)
        assert (await store.mesh_rows()).members == []

    async def test_invite_counts_its_uses_and_who_used_it(self, store: RelayStore) -> None:
        invite = InviteRow("01", b"h" * 32, "lab", Role.MEMBER, 2, 99, ALICE.node)

        def use(unit: Unit) -> tuple[InviteRow | None, bool, bool]:
            unit.save_mesh(MeshRow("lab", False, ALICE.node, 5))
            unit.save_invite(invite)
            unit.use_invite("01", BOB.node)
            used = unit.has_used_invite("01", BOB.node), unit.has_used_invite("01", CAROL.node)
            return unit.find_invite(b"h" * 32), *used

        found, bob, carol = await write(store, use)
        assert found is not None
        assert (found.uses_left, bob, carol) == (1, True, False)
        assert await write(store, lambda unit: unit.find_invite(b"x" * 32)) is None

    async def test_reindex_changes_no_answer(self, store: RelayStore) -> None:
        await add(store, *(ALICE.event(10_000 + number % 2, ("t", str(number % 3))) for number in range(20)))
        query = Query([Filter(tags={"t": frozenset({"2"})})], ALL)
        before = ids(await read_all(store, query))
        current = await store.current(Coordinate(10_001, ALICE.node, ""), ALL)
        await write(store, lambda unit: unit.reindex())
        assert ids(await read_all(store, query)) == before
        assert await store.current(Coordinate(10_001, ALICE.node, ""), ALL) == current

    async def test_feed_of_events_names_its_columns(self, store: RelayStore) -> None:
        event = ALICE.event(7, ("mesh", "lab"), content="é")
        message = ALICE.message(BOB.node)
        await add(store, event, message)
        columns, rows = await store.feed("events", 0, 10)
        first, second = (dict(zip(columns, row, strict=True)) for row in rows)
        assert (first["seq"], first["type"], first["mesh"], first["kind"]) == (1, "event.accepted", "lab", 7)
        assert (first["id"], first["pubkey"], first["recipient"]) == (event.id, ALICE.node, None)
        assert decode_event(first["event"].encode()) == event
        assert (second["type"], second["recipient"]) == ("message.accepted", BOB.node)
        assert await store.feed("events", 1, 10) == (columns, rows[1:])
        assert await store.feed("events", 2, 10) == (columns, [])

    async def test_unknown_feed_is_refused(self, store: RelayStore) -> None:
        with pytest.raises(PosthouseError) as caught:
            await store.feed("sqlite_schema", 0, 10)
        assert caught.value.code == "feed_unknown"
