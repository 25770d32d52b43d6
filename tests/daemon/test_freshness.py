"""Fresh mail: age, newer mail of the sender, superseded, withdrawn and stale messages."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from posthouse.cli.inbox import mail, show
from posthouse.cli.options import DaemonOptions
from posthouse.client.daemon import DaemonClient
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.inbox_items import NewItem
from posthouse.daemon.inbox.selection import InboxFilter
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock, format_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS
from tests.daemon.hosts import Host, eventually, make_host, running
from tests.daemon.test_clock import WrongClock
from tests.daemon.test_inbox import item

UNREAD = InboxFilter(is_unread=True)
HOUR_NS = 3_600 * SECOND_NS


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def inbox(tmp_path: Path, clock: FakeClock) -> Any:
    made = Inbox(tmp_path / "inbox.db", "main", clock)
    yield made
    made.close()


def message(number: int, /, *, sender: str = "s", from_agent: str = "", **meta: Any) -> NewItem:
    text = json.dumps(meta, sort_keys=True) if meta else ""
    return item(number, sender=sender)._replace(meta=text, from_agent=from_agent)


def message_id(number: int) -> str:
    return item(number).message_id


async def unread(inbox: Inbox) -> list[str | None]:
    return [each.body for each in await inbox.items(UNREAD)]


async def test_a_read_shows_how_old_the_message_is_and_what_is_newer(inbox: Inbox, clock: FakeClock) -> None:
    sent_ns = clock.wall_ns() - 2 * HOUR_NS
    await inbox.put([message(1)._replace(sent_at_ns=sent_ns), message(2), message(3, sender="t"), message(4)])
    clock.advance(60)
    first, second, *_ = [each.to_api(clock.wall_ns()) for each in await inbox.items(UNREAD)]
    assert (first["age_s"], first["newer_from_sender"], first["sent_at"]) == (7260.0, 2, format_utc(sent_ns))
    assert (second["age_s"], second["newer_from_sender"], second["sent_at"]) == (60.0, 1, None)


async def test_a_sender_whose_clock_is_ahead_makes_no_mail_of_the_future(inbox: Inbox, clock: FakeClock) -> None:
    await inbox.put([message(1)._replace(sent_at_ns=clock.wall_ns() + HOUR_NS)])
    clock.advance(5)
    [found] = await inbox.items(UNREAD)
    assert found.age_s(clock.wall_ns()) == 5.0


async def test_newer_mail_of_another_agent_of_the_same_host_does_not_count(inbox: Inbox) -> None:
    await inbox.put([message(1, from_agent="claude"), message(2, from_agent="codex")])
    assert [each.newer_from_sender for each in await inbox.items(UNREAD)] == [0, 0]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_later_message_replaces_an_unread_one_in_either_order_of_arrival(inbox: Inbox, is_late: bool) -> None:
    order = [message(1), message(2, supersedes=message_id(1))]
    for each in reversed(order) if is_late else order:
        await inbox.put([each])
    assert await unread(inbox) == ["m2"]
    old = (await inbox.find(message_id(1))).to_api(0)
    assert (old["body"], old["replaced_by"], old["is_withdrawn"], old["seen_at"]) == (
        "m1",
        item(2).id,
        False,
        None,
    )


async def test_a_message_that_was_read_is_not_replaced(inbox: Inbox) -> None:
    await inbox.put([message(1)])
    await inbox.mark_seen([message_id(1)])
    await inbox.put([message(2, supersedes=message_id(1))])
    old = (await inbox.find(message_id(1))).to_api(0)
    assert old["seen_at"] is not None and old["replaced_by"] == item(2).id
    assert await unread(inbox) == ["m2"]


@pytest.mark.parametrize("thief", [{"sender": "t"}, {"from_agent": "other"}])
@pytest.mark.parametrize("how", ["supersedes", "withdraws"])
async def test_only_its_own_sender_replaces_a_message(inbox: Inbox, thief: dict[str, Any], how: str) -> None:
    await inbox.put([message(1), message(2, **thief, **{how: message_id(1)})])
    assert "m1" in await unread(inbox)
    assert (await inbox.find(message_id(1))).replaced_by is None


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_withdrawn_unread_message_is_gone_with_its_text(inbox: Inbox, is_late: bool) -> None:
    told: list[str | None] = []
    inbox.on_new.append(lambda fresh: told.extend(each.body for each in fresh))
    order = [message(1), message(2, withdraws=message_id(1))]
    for each in reversed(order) if is_late else order:
        await inbox.put([each])
    assert await unread(inbox) == []
    old = (await inbox.find(message_id(1))).to_api(0)
    assert (old["body"], old["is_withdrawn"], old["seen_at"]) == (None, True, None)
    assert told == ([] if is_late else ["m1"])


async def test_an_agent_that_has_read_a_message_hears_of_its_withdrawal(inbox: Inbox) -> None:
    both = ("claude", "codex")
    await inbox.put([message(1)._replace(agents=both)])
    await inbox.mark_seen([message_id(1)], "claude")
    await inbox.put([message(2, withdraws=message_id(1))._replace(agents=both)])
    assert [each.body for each in await inbox.items(UNREAD._replace(agent="claude"))] == ["m2"]
    assert await inbox.items(UNREAD._replace(agent="codex")) == []
    assert (await inbox.find(message_id(1), "claude")).to_api(0)["body"] == "m1"
    assert (await inbox.find(message_id(1), "codex")).to_api(0)["body"] is None


async def test_a_message_is_stale_from_its_time_on(inbox: Inbox, clock: FakeClock) -> None:
    until_ns = clock.wall_ns() + HOUR_NS
    await inbox.put([message(1, valid_until=format_utc(until_ns)), message(2, valid_until="whenever")])
    first, second = await inbox.items(UNREAD)
    assert not first.to_api(until_ns - 1)["is_stale"]
    assert first.to_api(until_ns)["is_stale"]
    assert second.to_api(until_ns)["valid_until"] is None


# what senders say


async def test_a_sender_supersedes_and_withdraws_its_messages(alice: Host, bob: Host) -> None:
    first = await alice.send(bob.node, "deploy A", client_message_id="a")
    await alice.until_status("a", "done")
    second = await alice.send(bob.node, "deploy B", client_message_id="b", supersedes="a")
    await bob.until_bodies(2)
    [found] = (await bob.get("/v1/inbox", unread="true"))["items"]
    assert (found["body"], found["meta"]) == ("deploy B", {"supersedes": first["message_id"]})
    for _ in range(2):  # a second call does nothing new
        answer = await alice.post("/v1/messages/withdraw", id=second["message_id"])
        assert (answer.status, answer["state"]) == (200, "withdrawing")
    withdrawn = await eventually(lambda: shown(bob, second["message_id"]), lambda each: each["is_withdrawn"])
    assert withdrawn["body"] is None
    assert (await bob.get("/v1/inbox", unread="true"))["items"] == []


async def shown(host: Host, key: str) -> Any:
    return (await host.get(f"/v1/inbox/{key}")).body


async def test_a_message_that_was_not_sent_is_dropped(tmp_path: Path) -> None:
    to = NodeKey.generate().node
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        for client_id in ("a", "b"):
            await host.send(to, "deploy", client_message_id=client_id)
        assert (await host.post("/v1/messages/withdraw", id="a"))["state"] == "dropped"
        assert (await host.row("a"))["status"] == "aborted"
        await host.send(to, "deploy 2", client_message_id="c", supersedes="b")
        assert (await host.row("b"))["status"] == "aborted"
        assert (await host.post("/v1/messages/withdraw", id="a"))["error"] == "outbox_row_state"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"supersedes": "other"}, "supersedes"),
        ({"valid_until": "2001-01-01T00:00:00Z"}, "valid_until"),
        ({"valid_until": "soon"}, "timestamp"),
        ({"valid_until": "2099-01-01T00:00:00Z", "meta": {"valid_until": "2098-01-01T00:00:00Z"}}, "meta"),
    ],
)
async def test_a_sender_that_contradicts_itself_is_refused(tmp_path: Path, options: Any, name: str) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        await host.send(NodeKey.generate().node, "to another recipient", client_message_id="other")
        answer = await host.send(NodeKey.generate().node, "x", client_message_id="x", **options)
        assert (answer.status, answer["error"], answer["name"]) == (400, "value_invalid", name)
        assert (await host.get("/v1/outbox/x")).status == 404


async def test_only_the_agent_that_sent_a_message_withdraws_it(tmp_path: Path) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        await host.post("/v1/agents", name="claude")
        await host.send(NodeKey.generate().node, "mine", client_message_id="mine")
        options = {"json": {"id": "mine"}, "headers": {"Posthouse-Agent": "claude"}}
        answer = await host.ask("POST", "/v1/messages/withdraw", **options)
        assert (answer.status, answer["error"]) == (404, "outbox_row_unknown")


# stale messages


async def stale_host(tmp_path: Path) -> tuple[Host, WrongClock]:
    """A host without a relay whose agent claude has a message that counts for one more hour."""
    clock = WrongClock()
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a", clock=clock)
    await host.up()
    await host.add_agent("claude")
    until = format_utc(clock.wall_ns() + HOUR_NS)
    await host.send("claude", "deploy 7", client_message_id="deploy-7", valid_until=until)
    await host.acting_as("claude").until_bodies(1)
    return host, clock


async def test_the_text_of_a_stale_message_is_withheld_until_its_reader_confirms(tmp_path: Path) -> None:
    host, clock = await stale_host(tmp_path)
    try:
        claude = host.acting_as("claude")
        clock.ahead_s = 2 * 3_600
        [item] = (await claude.get("/v1/inbox", unread="true"))["items"]
        assert (item["body"], item["is_stale"]) == (None, True)
        [told] = (await claude.get(f"/v1/threads/{item['message_id']}"))["messages"]
        assert told["is_own"], "the host that sent it has the text"
        refused = await claude.get(f"/v1/inbox/{item['id']}")
        assert (refused.status, refused["error"], refused["id"]) == (409, "message_stale", item["message_id"])
        await claude.post("/v1/inbox/seen", ids=[item["id"]])
        assert (await host.row("deploy-7"))["state"] == "confirmed", "no text was handed over"
        [again] = (await claude.get("/v1/inbox"))["items"]
        assert again["body"] is None, "a mark is no confirmation"
        shown = await claude.get(f"/v1/inbox/{item['id']}", confirm="true")
        assert (shown.status, shown["body"], shown["is_stale"]) == (200, "deploy 7", True)
        await eventually(lambda: host.row("deploy-7"), lambda row: row["state"] == "read")
    finally:
        await host.down()


async def test_a_message_that_was_read_in_time_keeps_its_text(tmp_path: Path) -> None:
    host, clock = await stale_host(tmp_path)
    try:
        claude = host.acting_as("claude")
        await claude.post("/v1/inbox/seen", all=True)
        clock.ahead_s = 2 * 3_600
        [item] = (await claude.get("/v1/inbox"))["items"]
        assert (item["body"], item["is_stale"]) == ("deploy 7", True)
        assert (await claude.get(f"/v1/inbox/{item['id']}")).status == 200
    finally:
        await host.down()


async def test_python_raises_message_stale_unless_the_program_confirms(tmp_path: Path) -> None:
    host, clock = await stale_host(tmp_path)
    try:
        clock.ahead_s = 2 * 3_600
        async with DaemonClient(host.settings.directory, agent="claude") as daemon:
            [item] = await daemon.wait(10)
            assert item.body is None and any("ask its sender" in notice for notice in item.notices)
            with pytest.raises(PosthouseError) as refused:
                await daemon.item(item.id)
            assert refused.value.code == "message_stale"
            assert (await daemon.item(item.id, confirm=True)).body == "deploy 7"
    finally:
        await host.down()


async def test_a_stream_that_resumes_does_not_show_a_late_command_as_a_new_one(tmp_path: Path) -> None:
    host, clock = await stale_host(tmp_path)
    try:
        claude = host.acting_as("claude")
        before = (await claude.get("/v1/inbox"))["items"][0]
        until = format_utc(clock.wall_ns() + HOUR_NS)
        await host.send("claude", "deploy 8", valid_until=until)
        await claude.until_bodies(2)
        clock.ahead_s = 2 * 3_600
        headers = {"Posthouse-Agent": "claude", "Last-Event-ID": before["id"]}
        async with host.session.get("http://localhost/v1/events", headers=headers) as stream:
            async for line in stream.content:
                if line.startswith(b"data: "):
                    break
        event = json.loads(line.removeprefix(b"data: "))
        assert (event["is_stale"], event["body"]) == (True, None)
    finally:
        await host.down()


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


async def test_the_command_line_asks_a_person_and_refuses_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, clock = await stale_host(tmp_path)
    try:
        clock.ahead_s = 2 * 3_600
        options = DaemonOptions(directory=host.settings.directory, agent="claude")

        async def typed(answer: str) -> str:
            monkeypatch.setattr("sys.stdin", Terminal(answer) if answer else io.StringIO())
            await asyncio.to_thread(show, found, daemon_options=options)
            return capsys.readouterr().out

        found = (await host.acting_as("claude").get("/v1/inbox"))["items"][0]["id"]
        for answer in ("", "n\n", "\n"):
            with pytest.raises(PosthouseError) as refused:
                await typed(answer)
            assert refused.value.code == "message_stale"
        assert "deploy 7" not in capsys.readouterr().out
        assert "deploy 7" in await typed("y\n")
        await asyncio.to_thread(mail, daemon_options=options)
        listed = capsys.readouterr().out
        assert "withheld" in listed and "deploy 7" not in listed
    finally:
        await host.down()
