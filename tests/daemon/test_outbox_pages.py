"""What an outbox writes for a new row, and how it finds rows that are in few indexes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon.outbox.outbox import Outbox, OutboxFilter
from posthouse.daemon.outbox.outbox_rows import Deferred, Depth, GivenUp, NewRow, Outcome, SendOutcome, Sent
from posthouse.daemon.outbox.transitions import OUTBOX, SQL
from posthouse.daemon.recovery import damage_of
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.sqlite.connection import Durability, open_writer
from tests.daemon.old_stores import make_old_store

CAPACITY = 10**9
MAX_PAGES = 8  # of a new row; 11 before the indexes left out pending rows
NODE = "ed25519:" + "a" * 64


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    opened = Outbox(tmp_path / "outbox.db", "main", FakeClock())
    yield opened
    opened.close()


def new_row(name: str, destination: str = NODE) -> NewRow:
    return NewRow(f"row-{name}", name, b"f" * 32, os.urandom(32).hex(), b"x" * 1_100, destination)


async def add(outbox: Outbox, *rows: NewRow) -> None:
    for row in rows:
        await outbox.accept(row, CAPACITY)


async def send(outbox: Outbox, count: int, message_id: str | None = None, destination: str = NODE) -> None:
    """Claim rows and settle them as accepted by the relay, under their own ids unless another one is given."""
    rows = await outbox.claim(destination, count)
    events = [(await outbox.find(row.id)).event_id for row in rows]
    answers = [Sent(row, message_id or event, 1, ()) for row, event in zip(rows, events, strict=True)]
    await outbox.settle(answers, destination, 0)


def wal_frames(outbox: Outbox) -> int:
    """Return how many frames the write-ahead log has; its file is longer."""
    with closing(open_writer(outbox.store.path, Durability.FULL)) as db:
        frames, _copied = db.wal_checkpoint(mode=0)
    return frames


async def test_new_row_changes_few_pages(outbox: Outbox) -> None:
    await add(outbox, *(new_row(os.urandom(8).hex()) for _ in range(16)))
    before, count = wal_frames(outbox), 96
    await add(outbox, *(new_row(os.urandom(8).hex()) for _ in range(count)))
    assert count < wal_frames(outbox) - before <= count * MAX_PAGES


async def test_settling_rows_does_not_write_the_index_by_event_again(outbox: Outbox) -> None:
    count, frame = 1_000, 64
    await add(outbox, *(new_row(str(number)) for number in range(count)))
    for _ in range(count // frame - 1):  # event ids are random: the entries of a frame are all over the index
        await send(outbox, frame)
    rows = await outbox.claim(NODE, frame)
    before = wal_frames(outbox)
    await outbox.settle([Sent(row, "m", 1, ()) for row in rows], NODE, 0)
    assert wal_frames(outbox) - before <= frame / 2  # the rows themselves, four to a page, and few others


async def test_rows_are_found_by_every_id_in_every_state(outbox: Outbox) -> None:
    sent, failed, waiting = new_row("sent"), new_row("failed"), new_row("waiting", "#news")
    await add(outbox, sent, failed, waiting)
    for status in ("pending", "inflight", "settled"):
        for row in (sent, failed, waiting):
            for key in (row.id, row.client_message_id, row.event_id, row.event_id[:12]):
                assert (await outbox.find(key)).id == row.id, (status, key)
        if status == "pending":
            claimed = await outbox.claim(NODE, 64)
        elif status == "inflight":
            outcomes: list[SendOutcome] = [Sent(claimed[0], "b" * 64, 5, ()), GivenUp(claimed[1], "forbidden", "no")]
            await outbox.settle(outcomes, NODE, 0)
    assert (await outbox.find("b" * 64)).id == (await outbox.find("b" * 12)).id == sent.id
    assert [row.status for row in await outbox.rows(OutboxFilter(is_newest_first=False))] == ["done", "dead", "pending"]
    for status in ("done", "dead", "pending"):
        assert [row.status for row in await outbox.rows(OutboxFilter(status=status))] == [status]


async def test_short_id_of_two_rows_is_ambiguous_whatever_their_states(outbox: Outbox) -> None:
    one, other = (
        new_row(name)._replace(event_id="c" * 20 + digit * 44) for name, digit in (("one", "1"), ("other", "2"))
    )
    await add(outbox, one)
    await send(outbox, 1)
    await add(outbox, other)
    with pytest.raises(PosthouseError) as refused:
        await outbox.find("c" * 12)
    assert refused.value.code == "id_ambiguous"


async def test_outcome_of_a_row_that_waits_to_be_sent_again_is_stored(outbox: Outbox) -> None:
    row = new_row("again")
    await add(outbox, row)
    claimed = await outbox.claim(NODE, 1)
    await outbox.settle([Deferred(claimed[0], "unavailable", "later", 5)], NODE, 0)
    await outbox.note_outcomes([Outcome(row.event_id, "read", 7), Outcome("0" * 64, "read", 7)])
    found = await outbox.find(row.id)
    assert (found.status, found.read_at_ns) == ("pending", 7)


async def test_chain_of_requeues_is_found_from_both_ends(outbox: Outbox) -> None:
    first, second, third = (new_row(name) for name in ("first", "second", "third"))
    await add(outbox, first)
    await outbox.requeue(await outbox.find(first.id), second, CAPACITY)
    await outbox.requeue(await outbox.find(second.id), third, CAPACITY)
    for row in (first, third):
        chain = await outbox.chain(await outbox.find(row.id))
        assert [each.id for each in chain] == [first.id, second.id, third.id]


async def test_counters_are_exact_after_every_change(outbox: Outbox) -> None:
    for number in range(40):  # more than are added to the counters at once
        await add(outbox, new_row(str(number)))
        assert await outbox.depth() == Depth(number + 1, 0, (number + 1) * 1_100)
    rows = await outbox.claim(NODE, 30)
    assert await outbox.depth() == Depth(10, 30, 40 * 1_100)
    await outbox.settle([Sent(row, "m", 1, ()) for row in rows[:20]], NODE, 0)
    assert await outbox.depth() == Depth(10, 10, 40 * 1_100)
    assert await outbox.recover() == 10
    await outbox.drop(await outbox.find("39"))
    assert await outbox.depth() == Depth(19, 0, 40 * 1_100)
    assert damage_of(outbox.store.path, counters=True) is None


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("claimable", "outbox_pending (destination=?)"),
        ("position_of_message", "outbox_by_event (event_id=?)"),
        ("position_of_sent", "outbox_by_event (event_id=?)"),
        ("position_of_id", "outbox_by_id (id=?)"),
        ("strippable", "outbox_by_status (status=?)"),
        ("answered", "outbox_by_status (status=?)"),
        ("without_outcome", "outbox_by_status (status=?)"),
        ("reopen_inflight", "outbox_by_status (status=?)"),
        ("expired", "outbox_pending"),
    ],
)
async def test_statement_reads_only_the_rows_that_it_needs(outbox: Outbox, statement: str, index: str) -> None:
    text: str = getattr(SQL, statement)
    given: Any = {"id": "", "message_id": ""} if ":" in text else ("",) * text.count("?")
    plan = await outbox.store.pool.run(
        lambda db: [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {text}", given)]
    )
    assert any(index in step for step in plan), plan


_ROWS_BEFORE = """
INSERT INTO outbox (position, id, client_message_id, request_fingerprint, event_id, event, destination, enqueued_at_ns,
                    status, payload_bytes, broker_message_id, history_id, reply_to_id, own_post, attempts, not_queued)
VALUES (1, 'r1', 'c1', x'01', 'e1', x'7b7d', '#news', 5, 'pending', 2, NULL, NULL, 'q', 'none', 3, NULL),
       (3, 'r3', 'c3', x'03', 'e3', x'7b7d', '#news', 6, 'done', 2, 'b3', 9, NULL, 'waiting', 1, '[]'),
       (4, 'r4', 'c4', x'04', 'e4', x'7b7d', '#news', 7, 'inflight', 2, NULL, NULL, NULL, 'none', 1, NULL);
UPDATE outbox_state SET pending = 1, inflight = 1, bytes = 6
"""


@pytest.mark.parametrize("version", [7, 8])
async def test_outbox_of_a_version_before_keeps_its_rows_and_counters(tmp_path: Path, version: int) -> None:
    path = tmp_path / "outbox.db"
    counted = "; UPDATE outbox_state SET counted_through = 4" if version == 8 else ""
    make_old_store(path, OUTBOX, version, _ROWS_BEFORE + counted)
    assert damage_of(path, counters=True) is None
    outbox = Outbox(path, "main", FakeClock())
    try:
        assert await outbox.depth() == Depth(1, 1, 6)
        await add(outbox, new_row("new", "#news"))
        assert await outbox.depth() == Depth(2, 1, 1_106)
        kept = await outbox.rows(OutboxFilter(is_newest_first=False))
        assert [(row.position, row.id, row.status, row.attempts) for row in kept] == [
            (1, "r1", "pending", 3),
            (3, "r3", "done", 1),
            (4, "r4", "inflight", 1),
            (5, "row-new", "pending", 0),
        ]
        assert [(await outbox.find(key)).id for key in ("r1", "e1", "r3", "e3", "b3", "e4")] == [
            "r1",
            "r1",
            "r3",
            "r3",
            "r3",
            "r4",
        ]
        assert [(post.position, post.message_id) for post in await outbox.own_posts(None, 9)] == [(3, "b3")]
        assert (await outbox.find("r3")).not_queued == "[]"
        await outbox.note_outcomes([Outcome("e1", "read", 7)])
        assert (await outbox.find("r1")).read_at_ns == 7  # it was sent before, and waits to be sent again
        assert [row.id for row in await outbox.claim("#news", 64)] == ["r1", "row-new"]
    finally:
        outbox.close()
    assert damage_of(path, counters=True) is None


async def test_outbox_of_the_version_before_with_wrong_counters_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    make_old_store(path, OUTBOX, 7, f"{_ROWS_BEFORE}; UPDATE outbox_state SET pending = 2")
    assert "its counters" in str(damage_of(path, counters=True))
