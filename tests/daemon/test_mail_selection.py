"""Reading mail in order: oldest unread first, pages that reach everything, filters, search, marking many as read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.daemon.inbox.inbox import INBOX, SQL, Inbox
from posthouse.daemon.inbox.selection import InboxFilter, search_expression
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from tests.client.house import House
from tests.daemon.hosts import Host, host_at, make_host, running
from tests.daemon.old_stores import make_old_store
from tests.daemon.test_inbox import item


@pytest.fixture
async def mail(tmp_path: Path) -> Any:
    """A daemon without a relay whose inbox has 25 messages of two senders."""
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        await host.mesh.inbox.put([item(number, sender=f"s{number % 2}") for number in range(1, 26)])
        yield host


async def bodies(host: Host, **wanted: Any) -> list[str]:
    return [each["body"] for each in (await host.get("/v1/inbox", **wanted))["items"]]


async def all_pages(host: Host, path: str, cursor: str, **wanted: Any) -> list[Any]:
    """Return the items of every page."""
    found: list[Any] = []
    while True:
        page = await host.get(path, **wanted)
        found += page["items"]
        if page["next"] is None:
            return found
        wanted[cursor] = page["next"]


async def test_unread_mail_comes_oldest_first_and_all_mail_newest_first(mail: Host) -> None:
    assert await bodies(mail, unread="true", limit=2) == ["m1", "m2"]
    assert await bodies(mail, limit=2) == ["m25", "m24"]
    assert await bodies(mail, limit=2, order="oldest") == ["m1", "m2"]
    assert await bodies(mail, limit=2, unread="true", order="newest") == ["m25", "m24"]


async def test_a_reader_that_marks_what_it_got_reaches_everything(mail: Host) -> None:
    got: list[str] = []
    while items := (await mail.get("/v1/inbox", unread="true", limit=10))["items"]:
        got += [each["body"] for each in items]
        await mail.post("/v1/inbox/seen", ids=[each["id"] for each in items])
    assert got == [f"m{number}" for number in range(1, 26)]


@pytest.mark.parametrize(("order", "cursor"), [("oldest", "after"), ("newest", "before")])
async def test_pages_of_the_inbox_reach_every_message_once(mail: Host, order: str, cursor: str) -> None:
    found = [each["body"] for each in await all_pages(mail, "/v1/inbox", cursor, order=order, limit=10)]
    wanted = [f"m{number}" for number in range(1, 26)]
    assert found == (wanted if order == "oldest" else wanted[::-1])


async def test_a_page_that_holds_the_last_message_names_no_next(mail: Host) -> None:
    assert (await mail.get("/v1/inbox", limit=25))["next"] is None
    assert (await mail.get("/v1/inbox", limit=24))["next"] is not None


async def test_before_and_after_take_ids_and_times(mail: Host) -> None:
    items = (await mail.get("/v1/inbox", order="oldest"))["items"]
    assert await bodies(mail, before=items[3]["id"]) == ["m3", "m2", "m1"]
    assert await bodies(mail, after=items[22]["message_id"]) == ["m24", "m25"]
    assert await bodies(mail, after=items[3]["id"], before=items[6]["id"]) == ["m5", "m6"]
    assert await bodies(mail, before=items[0]["received_at"]) == []
    assert len(await bodies(mail, after=items[0]["received_at"])) == 25


async def test_an_unknown_place_to_start_from_is_an_error(mail: Host) -> None:
    answer = await mail.get("/v1/inbox", before="nonsense")
    assert (answer.status, answer["error"]) == (404, "inbox_item_unknown")
    answer = await mail.get("/v1/inbox", after="2026-01-31T09:30")
    assert (answer.status, answer["error"]) == (400, "value_invalid")
    answer = await mail.get("/v1/inbox", order="sideways")
    assert (answer.status, answer["error"]) == (400, "parameter_invalid")


async def test_search_finds_words_phrases_and_beginnings(mail: Host) -> None:
    texts = ["Deploy of the Café service failed", "roll back the deploy", "back to roll one", "deployment src/api.py"]
    await mail.mesh.inbox.put([item(100 + n, body=text) for n, text in enumerate(texts)])
    assert await bodies(mail, search="deploy", order="oldest") == texts[:2]
    assert await bodies(mail, search="cafe FAILED") == texts[:1]
    assert await bodies(mail, search='"roll back"') == [texts[1]]
    assert await bodies(mail, search="deploy*", order="oldest") == [texts[0], texts[1], texts[3]]
    assert await bodies(mail, search="src/api.py") == [texts[3]]
    assert await bodies(mail, search="deploy -roll NEAR(back)") == []
    assert await bodies(mail, search="nothing-like-this") == []


async def test_search_finds_mail_that_came_after_an_earlier_search_and_no_deleted_mail(tmp_path: Path) -> None:
    clock = FakeClock()
    inbox = Inbox(tmp_path / "inbox.db", "main", clock)
    wanted = InboxFilter(search=search_expression("needle"))
    try:
        await inbox.put([item(1, body="a needle")])
        assert [each.body for each in await inbox.items(wanted)] == ["a needle"]
        await inbox.mark_all_seen(InboxFilter())
        clock.advance(100)
        await inbox.put([item(2, body="another needle")])
        assert len(await inbox.items(wanted)) == 2
        await inbox.delete_before(clock.wall_ns() - 50 * 10**9)
        assert [each.body for each in await inbox.items(wanted)] == ["another needle"]
    finally:
        inbox.close()


async def test_an_inbox_from_before_the_index_is_searchable(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    make_old_store(path, INBOX, 2, OLD_MAIL)
    inbox = Inbox(path, "main", FakeClock())
    try:
        found = await inbox.items(InboxFilter(search=search_expression("mail 1200")))
        assert [each.body for each in found] == ["old mail 1200"]
        assert (found[0].sent_at_ns, found[0].newer_from_sender) == (None, 0)
    finally:
        inbox.close()


OLD_MAIL = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1200)
INSERT INTO inbox (id, client_message_id, message_id, mesh, sender, body, meta, received_at_ns, priority, bridge)
SELECT printf('%026d', n), n, printf('%064x', n), 'main', 's', 'old mail ' || n, '', n, 'next', 'off' FROM numbers
"""


@given(st.text(max_size=60))
def test_any_text_is_a_valid_search_or_a_clear_refusal(text: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5 (body)")
    try:
        expression = search_expression(text)
    except PosthouseError as failure:
        assert failure.code == "parameter_invalid"
        assert not any(character.isalnum() for character in text)
    else:
        db.execute("SELECT * FROM t WHERE t MATCH ?", (expression,)).fetchall()
    finally:
        db.close()


async def test_a_search_without_words_is_refused(mail: Host) -> None:
    answer = await mail.get("/v1/inbox", search='"" --')
    assert (answer.status, answer["error"]) == (400, "parameter_invalid")


async def test_no_common_query_reads_all_mail_of_a_large_inbox(tmp_path: Path) -> None:
    """Query plans, because times on a busy machine prove nothing: each table is searched by the index that ends it."""
    inbox = Inbox(tmp_path / "inbox.db", "main", FakeClock())
    plans: list[str] = []

    def explain(db: apsw.Connection, statement: str, values: Any) -> list[Any]:
        plans.extend(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values))
        return []

    try:
        await inbox.store.pool.run(lambda db: explain(db, SQL.same_client_message_id, ("s", "c", "")))
        where, values = InboxFilter(is_unread=True).condition()
        await inbox.store.pool.run(lambda db: explain(db, f"{SQL.columns} WHERE {where}", values))
        await inbox.put([item(1)])
        assert len(await inbox.items(InboxFilter(is_unread=True))) == 1
    finally:
        inbox.close()
    assert any("(sender=? AND client_message_id=?)" in plan for plan in plans)
    assert any("inbox_by_sender (sender=? AND position>?)" in plan for plan in plans)
    assert not any(plan.startswith("SCAN inbox") for plan in plans)


# marking many as read


async def test_mail_is_marked_as_read_by_conditions(house: House, alice: Host, bob: Host) -> None:
    async with host_at(house, "carol") as carol:
        for sender, text in ((alice, "one"), (carol, "two"), (alice, "three")):
            await sender.send(bob.node, text)
            await bob.until_bodies({"one": 1, "two": 2, "three": 3}[text])
        assert (await bob.post("/v1/inbox/seen", **{"from": alice.node}))["count"] == 2
        assert await bodies(bob, unread="true") == ["two"]
        assert (await bob.post("/v1/inbox/seen", all=True))["count"] == 1
        assert await bodies(bob, unread="true") == []


async def test_marking_before_a_message_leaves_it_and_later_ones_unread(mail: Host) -> None:
    items = (await mail.get("/v1/inbox", order="oldest"))["items"]
    assert (await mail.post("/v1/inbox/seen", before=items[20]["id"]))["count"] == 20
    assert (await mail.post("/v1/inbox/seen", before=items[20]["id"]))["count"] == 0
    assert await bodies(mail, unread="true") == ["m21", "m22", "m23", "m24", "m25"]


@pytest.mark.parametrize("body", [{}, {"ids": ["x"], "all": True}, {"ids": ["x"], "topic": "t"}])
async def test_marking_without_a_clear_selection_is_refused(mail: Host, body: dict[str, Any]) -> None:
    answer = await mail.post("/v1/inbox/seen", **body)
    assert (answer.status, answer["error"]) == (400, "body_invalid")
    assert len(await bodies(mail, unread="true")) == 25


# the outbox


async def test_pages_of_the_outbox_reach_every_row_once(tmp_path: Path) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        to = NodeKey.generate().node
        sent = [(await host.send(to, f"m{number}"))["id"] for number in range(12)]
        newest = [each["id"] for each in await all_pages(host, "/v1/outbox", "before", limit=5)]
        assert newest == sent[::-1]
        oldest = [each["id"] for each in await all_pages(host, "/v1/outbox", "after", limit=5, order="oldest")]
        assert oldest == sent
        assert [each["id"] for each in (await host.get("/v1/outbox", after=sent[9]))["items"]] == sent[10:]
        assert len((await host.get("/v1/outbox", to=to, status="pending"))["items"]) == 12
        assert (await host.get("/v1/outbox", before="nonsense")).status == 404
