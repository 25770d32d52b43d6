"""Mail between agents of one host: no relay, own inboxes, own ids, refusals instead of phantom inboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon import mailroom
from posthouse.daemon.outbox.transitions import SQL
from posthouse.journal.append import JournalTransaction
from tests.daemon.hosts import Host, eventually, make_host, restart, running

NOWHERE = "ws://127.0.0.1:9"


async def bodies(program: Host, **params: str) -> list[str]:
    return [item["body"] for item in (await program.get("/v1/inbox", order="oldest", **params))["items"]]


async def test_an_agent_writes_to_another_one_without_any_relay(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        sent = await ann.send("ben", "hello", meta={"k": 1}, client_message_id="m-1")
        assert sent.status == 202, sent.body
        row = await ann.until_status("m-1", "done")
        assert (row["from_agent"], row["to_agent"], row["history_id"]) == ("ann", "ben", None)
        [item] = (await ben.get("/v1/inbox"))["items"]
        assert (item["body"], item["from_agent"], item["meta"]) == ("hello", "ann", {"k": 1})
        assert (item["sender"], item["message_id"]) == (host.node, sent["message_id"])
        assert await bodies(ann) == await bodies(host) == []


async def test_agents_of_a_host_without_a_relay_see_each_other(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann = await host.add_agent("ann")
        await host.add_agent("ben")
        [peer] = (await ann.get("/v1/peers"))["peers"]
        assert (peer["node"], peer["is_self"]) == (host.node, True)
        assert [agent["name"] for agent in peer["agents"]] == ["ann", "ben"]


async def test_the_host_and_its_agents_write_to_each_other(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann = await host.add_agent("ann")
        await host.send("ann", "to the agent")
        await ann.send(host.node, "to the person")
        assert await eventually(lambda: bodies(ann), lambda seen: bool(seen)) == ["to the agent"]
        assert await eventually(lambda: bodies(host), lambda seen: bool(seen)) == ["to the person"]


async def test_one_id_to_two_agents_is_a_conflict_and_of_two_agents_two_messages(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        cat = await host.add_agent("cat")
        assert (await ann.send("cat", "same", client_message_id="c")).status == 202
        other = await ann.send("ben", "same", client_message_id="c")
        assert (other.status, other["error"]) == (409, "idempotency_key_reused")
        assert (await ben.send("cat", "same", client_message_id="c")).status == 202
        assert (await ann.send("cat", "same", client_message_id="c")).status in (200, 202)
        await ann.until_status("c", "done")
        await ben.until_status("c", "done")
        items = (await cat.get("/v1/inbox", order="oldest"))["items"]
        assert sorted(item["from_agent"] for item in items) == ["ann", "ben"]
        assert [item["conflicts_with"] for item in items] == [None, None]


async def test_read_state_belongs_to_one_agent(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        await host.send("ann", "one", client_message_id="1")
        await host.send("ben", "two", client_message_id="2")
        await host.until_status("2", "done")
        [mine] = (await ann.get("/v1/inbox", wait_s=10))["items"]
        assert (await ben.get(f"/v1/inbox/{mine['id']}"))["error"] == "inbox_item_unknown"
        assert (await ben.post("/v1/inbox/seen", ids=[mine["id"]]))["error"] == "inbox_item_unknown"
        assert (await ann.post("/v1/inbox/seen", all=True))["count"] == 1
        assert (await bodies(ann, unread="true"), await bodies(ben, unread="true")) == ([], ["two"])


async def test_mail_to_an_unknown_or_retired_agent_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann = await host.add_agent("ann")
        await host.add_agent("reviewer")
        wrong = await ann.send("reviewr", "hello")
        assert (wrong.status, wrong["error"]) == (404, "member_name_unknown")
        assert "Did you mean reviewer?" in wrong["hint"]
        there = await ann.send(f"reviewr@{host.node}", "hello")
        assert (there.status, there["error"]) == (404, "agent_unknown")
        await host.post("/v1/agents/retire", name="reviewer", reason="ask ann")
        retired = await ann.send("reviewer", "hello")
        assert (retired.status, retired["error"]) == (409, "agent_retired")
        assert "ask ann" in retired["detail"]
        for bad in ("a@b@c", "@x", "ann@", "Ann@host"):
            assert (await ann.send(bad, "hello")).status == 400, bad
        assert (await ann.get("/v1/outbox"))["items"] == []


async def test_a_request_that_is_repeated_after_its_agent_retired_is_still_the_message_that_was_sent(
    tmp_path: Path,
) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        await host.add_agent("ann")
        for to in ("ann", f"ann@{host.node}"):
            first = await host.send(to, "hello", client_message_id=to)
            await host.until_status(to, "done")
            await host.post("/v1/agents/retire", name="ann")
            again = await host.send(to, "hello", client_message_id=to)
            assert (again.status, again["duplicate"], again["message_id"]) == (200, True, first["message_id"])
            other = await host.send(to, "something else", client_message_id=to)
            assert (other.status, other["error"]) == (409, "idempotency_key_reused")
            assert (await host.send(to, "hello"))["error"] == "agent_retired"
            await host.add_agent("ann")


async def test_a_retired_agent_cannot_send(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann = await host.add_agent("ann")
        await host.post("/v1/agents/retire", name="ann")
        assert (await ann.send(host.node, "hello"))["error"] == "agent_retired"
        assert (await ann.get("/v1/inbox")).status == 200, "it can still read what it has"


async def test_a_full_agent_refuses_more_until_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailroom, "UNREAD_MAX", 2)
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann = await host.add_agent("ann")
        for number in range(3):
            await host.send("ann", f"m{number}", client_message_id=f"{number}")
            await host.until_status(f"{number}", "dead" if number == 2 else "done")
        assert "agent_full" in (await host.row("2"))["last_error"]
        await ann.post("/v1/inbox/seen", all=True)
        await host.send("ann", "later", client_message_id="later")
        await host.until_status("later", "done")
        assert await bodies(ann, unread="true") == ["later"]


async def test_mail_moves_with_a_renamed_agent_and_survives_a_restart(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        await host.add_agent("claude")
        await host.send("claude", "before", client_message_id="1")
        await host.until_status("1", "done")
        await host.post("/v1/agents/rename", name="claude", to="reviewer")
        refused = await host.send("claude", "after")
        assert "reviewer" in refused["detail"]
        await restart(host)
        assert await bodies(host.acting_as("reviewer")) == ["before"]
        assert await bodies(host.acting_as("claude")) == ["before"], "the old name stands for the new one"


async def test_mail_that_is_delivered_again_after_its_agent_retired_is_not_refused(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        claude = await host.add_agent("claude")
        await host.send("claude", "before", client_message_id="1")
        await host.until_status("1", "done")
        await host.post("/v1/agents/retire", name="claude")

        def reopen(tx: JournalTransaction) -> None:  # as if the daemon had been killed before it noted the delivery
            tx.db.execute(SQL.reopen, (1,))
            tx.db.execute(SQL.add_state, (1, 0, 0))

        await host.mesh.outbox.store.writer.run(reopen)
        host.mesh.drain.wake(host.node)
        await host.until_status("1", "done")
        assert await bodies(claude) == ["before"]


async def test_an_event_stream_shows_the_mail_of_its_agent_only(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        url, headers = "http://localhost/v1/events", {"Posthouse-Agent": "ben"}
        async with host.session.get(url, headers=headers) as stream:
            await stream.content.readuntil(b"\n\n")
            await ann.send(host.node, "not for ben")
            await host.send("ann", "not for ben either")
            await ann.send("ben", "for ben")
            text = (await stream.content.readuntil(b"\n\n")).decode()
        assert "event: message" in text
        assert "for ben" in text
        assert "not for ben" not in text
        assert await bodies(ben) == ["for ben"]


async def test_the_history_of_agents_of_one_host_needs_no_relay(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        await host.add_agent("cat")
        for number, (program, to) in enumerate([(ann, "ben"), (ben, "ann"), (ann, "cat"), (host, "ben")]):
            await program.send(to, f"m{number}", client_message_id=f"{number}")
            await program.until_status(f"{number}", "done")

        async def history(program: Host, **params: str) -> list[str]:
            return [each["body"] for each in (await program.get("/v1/history", **params))["messages"]]

        assert await history(ann, **{"with": "ben"}) == ["m1", "m0"]
        assert await history(ben, **{"with": "ann"}) == ["m1", "m0"]
        assert await history(ben, **{"with": host.node}) == ["m3", "m1", "m0"]
        assert await history(host, **{"with": "ben"}) == ["m3", "m1", "m0"], "the host sees all its agents"
        page = await ann.get("/v1/history", **{"with": "ben", "limit": "1"})
        assert await history(ann, **{"with": "ben", "before": page["before"]}) == ["m0"]
        bad = await ann.get("/v1/history", **{"with": "ben", "before": "x"})
        assert (bad.status, bad["error"]) == (400, "parameter_invalid")


async def test_mail_is_filtered_by_the_agent_that_sent_it_and_the_outbox_by_both(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        await ann.send("ben", "from ann", client_message_id="1")
        await host.send("ben", "from host", client_message_id="2")
        await host.send("ann", "to ann", client_message_id="3")
        for program, key in ((ann, "1"), (host, "2"), (host, "3")):
            await program.until_status(key, "done")
        assert await bodies(ben, **{"from": "ann"}) == ["from ann"]
        assert await bodies(ben, **{"from": f"ann@{host.node}"}) == ["from ann"]
        await host.post("/v1/agents/retire", name="ann")
        assert await bodies(ben, **{"from": "ann"}) == ["from ann"], "its old mail stays readable"

        async def sent(program: Host, **params: str) -> list[str]:
            return [row["client_message_id"] for row in (await program.get("/v1/outbox", **params))["items"]]

        assert await sent(ann) == ["1"]
        assert await sent(host) == ["3", "2", "1"]
        assert await sent(host, to=f"ben@{host.node}") == ["2", "1"]
        unread = {agent["name"]: agent["unread"] for agent in (await host.get("/v1/agents"))["items"]}
        assert unread == {"ann": 1, "ben": 2}


async def test_a_program_with_the_name_from_before_a_rename_acts_for_the_renamed_agent(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        old, other = await host.add_agent("claude"), await host.add_agent("other")
        await other.send("claude", "before", client_message_id="1")
        await old.until_bodies(1)
        assert (await host.post("/v1/agents/rename", name="claude", to="reviewer")).status == 200
        await other.send("reviewer", "after")
        assert await old.until_bodies(2) == ["before", "after"], "no inbox that nothing reaches"
        await old.send("other", "hello")
        [item] = await eventually(lambda: mail_of(other), lambda items: len(items) == 1)
        assert item["from_agent"] == "reviewer"


async def mail_of(program: Host) -> list[Any]:
    found: list[Any] = (await program.get("/v1/inbox"))["items"]
    return found


async def test_a_retired_agent_reads_its_mail_and_neither_sends_nor_follows(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        claude = await host.add_agent("claude")
        await host.send("claude", "x")
        await claude.until_bodies(1)
        await host.post("/v1/agents/retire", name="claude", reason="done")
        assert await claude.bodies() == ["x"]
        for said in (await claude.send(host.node, "y"), await claude.post("/v1/topic/subscribe", topic="news")):
            assert (said.status, said["error"]) == (409, "agent_retired")


async def test_an_unknown_recipient_is_no_agent_and_no_host(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        await host.add_agent("claude")
        said = await host.send("carol", "x")
        assert (said.status, said["detail"]) == (404, "there is no host or agent 'carol' in mesh main")
        assert "NAME@HOST" in said["hint"], "the relay cannot be asked"
        near = (await host.send(f"claude@{host.node[8:15]}", "x"))["hint"]
        assert f"Did you mean claude@{host.node[8:16]}," in near, "a host without a name is the beginning of its key"
