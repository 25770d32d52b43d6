"""Receipts: a sender learns when the program of an agent was given its message, and nothing earlier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.messages import receipts
from posthouse.daemon import registrar
from posthouse.daemon.outbox.outbox_rows import Outcome
from posthouse.model.outbox_rules import MessageState, shown_state
from tests.client.house import House
from tests.daemon.hosts import Host, eventually, make_host, restart, running

NOWHERE = "ws://127.0.0.1:9"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "PUBLISH_EVERY_S", 0.05)


async def status(program: Host, key: str) -> Any:
    return (await program.get(f"/v1/messages/{key}")).body


async def until_state(program: Host, key: str, state: str) -> Any:
    return await eventually(lambda: status(program, key), lambda seen: seen.get("state") == state)


async def first_item(program: Host) -> Any:
    found = await eventually(lambda: program.get("/v1/inbox"), lambda said: bool(said["items"]))
    return found["items"][0]


async def add_known_agent(build: Host, laptop: Host, name: str, **fields: Any) -> Host:
    """Add an agent and wait until the other host can write to it."""
    program = await build.add_agent(name, **fields)

    async def names() -> list[str]:
        peers = (await laptop.get("/v1/peers"))["peers"]
        return [agent["name"] for peer in peers if peer["node"] == build.node for agent in peer["agents"]]

    await eventually(names, lambda seen: name in seen)
    return program


async def test_a_message_is_confirmed_then_read_then_answered(laptop: Host, build: Host) -> None:
    claude = await add_known_agent(laptop, build, "claude")
    tester = await add_known_agent(build, laptop, "tester")
    build.mesh.uplink.client.receipts.gather_s = 0.05
    sent = await claude.send(f"tester@{build.node}", "run", client_message_id="c")
    confirmed = await until_state(claude, "c", "confirmed")
    assert confirmed["has_receipts"] is True
    item = await first_item(tester)
    assert (await status(claude, "c"))["state"] == "confirmed", "a list is a preview"
    assert (await tester.get(f"/v1/inbox/{item['id']}")).status == 200
    await until_state(claude, "c", "read")
    row = await eventually(lambda: claude.row("c"), lambda row: row["read_at"] is not None)
    assert row["state"] == "read"
    await tester.send(f"claude@{laptop.node}", "green", reply_to_id=sent["message_id"])
    answered = await until_state(claude, "c", "answered")
    assert answered["answered_at"] is not None


async def test_an_agent_without_receipts_and_the_default_inbox_tell_nothing(laptop: Host, build: Host) -> None:
    quiet = await add_known_agent(build, laptop, "quiet", receipts=False)
    build.mesh.uplink.client.receipts.gather_s = 0.01
    await laptop.send(f"quiet@{build.node}", "one", client_message_id="1")
    await laptop.send(build.node, "two", client_message_id="2")
    for program, key in ((quiet, "1"), (build, "2")):
        await first_item(program)
        await program.post("/v1/inbox/seen", all=True)
        seen = await until_state(laptop, key, "confirmed")
        assert seen["has_receipts"] is False
    pending = "SELECT count(*) FROM inbox_receipts WHERE is_sent = 0"
    await eventually(
        lambda: build.mesh.inbox.store.pool.run(lambda db: db.execute(pending).get), lambda count: count == 0
    )
    for key in ("1", "2"):
        assert (await status(laptop, key))["state"] == "confirmed"


async def test_a_receipt_waits_for_the_connection_and_survives_a_restart(
    house: House, laptop: Host, build: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "GATHER_S", 0.01)
    tester = await add_known_agent(build, laptop, "tester")
    await laptop.send(f"tester@{build.node}", "run", client_message_id="c")
    await first_item(tester)
    await restart(build, relay=NOWHERE)
    assert (await tester.post("/v1/inbox/seen", all=True))["count"] == 1
    await restart(build, relay=house.url)
    await until_state(laptop, "c", "read")


async def test_a_receipt_that_was_lost_with_a_killed_daemon_is_asked_for_after_its_start(
    house: House, laptop: Host, build: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.mesh.uplink.client.receipts.gather_s = 0.01
    tester = await add_known_agent(build, laptop, "tester")
    received: list[Outcome] = []

    async def forget(outcomes: Sequence[Outcome]) -> None:  # as if the daemon were killed before the commit
        received.extend(outcomes)

    monkeypatch.setattr(laptop.mesh.outbox, "note_outcomes", forget)
    await laptop.send(f"tester@{build.node}", "run", client_message_id="c")
    await first_item(tester)
    await tester.post("/v1/inbox/seen", all=True)
    assert house.server is not None
    pool: Any = house.server.context.engine.store._pool  # type: ignore[attr-defined]
    await eventually(_returned(received), lambda seen: "read" in [each.state for each in seen])
    waiting = "SELECT count(*) FROM waiting_confirmations"
    await eventually(lambda: pool.run(lambda db: db.execute(waiting).get), lambda count: count == 0)
    assert (await laptop.row("c"))["read_at"] is None
    await restart(laptop)
    row = await eventually(lambda: laptop.row("c"), lambda row: row["read_at"] is not None)
    assert row["state"] == "read" and row["confirmed_at"] is not None


def _returned(value: list[Outcome]) -> Callable[[], Awaitable[list[Outcome]]]:
    async def give() -> list[Outcome]:
        return value

    return give


async def test_between_agents_of_one_host_receipts_need_no_relay(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        ann, ben = await host.add_agent("ann"), await host.add_agent("ben")
        await ann.send("ben", "hello", client_message_id="c")
        found = await until_state(ann, "c", "confirmed")
        assert (found["relay_error"], found["has_receipts"]) == (None, True)
        await ben.post("/v1/inbox/seen", all=True)
        await until_state(ann, "c", "read")
        [item] = (await ben.get("/v1/inbox"))["items"]
        await ben.send("ann", "hi", reply_to_id=item["message_id"])
        await until_state(ann, "c", "answered")


def test_the_state_of_a_message_is_the_furthest_that_anything_says() -> None:
    sent, confirmed = MessageState.SENT, MessageState.CONFIRMED
    assert shown_state(sent, "queued", None, is_answered=False) is sent
    assert shown_state(sent, "confirmed", None, is_answered=False) is confirmed
    assert shown_state(confirmed, "confirmed", "read", is_answered=False) is MessageState.READ
    assert shown_state(confirmed, "confirmed", "rejected", is_answered=False) is MessageState.REJECTED
    for state in ("rejected", "dead", "expired"):
        assert shown_state(sent, state, None, is_answered=False) == state
    assert shown_state(MessageState.READ, "confirmed", "read", is_answered=True) is MessageState.ANSWERED
    assert shown_state(MessageState.DEAD, None, None, is_answered=False) is MessageState.DEAD


async def test_a_sender_is_told_that_an_agent_refused_its_message(laptop: Host, build: Host) -> None:
    await add_known_agent(build, laptop, "tester")
    build.mesh.uplink.client.receipts.gather_s = 0.01
    build.daemon.agents._agents = {}  # the list of the sender is older than the host's own
    await laptop.send(f"tester@{build.node}", "run", client_message_id="c")
    row = await eventually(lambda: laptop.row("c"), lambda row: row["state"] == "rejected")
    assert (row["reject_reason"], row["rejected_at"] is not None) == ("agent_unknown", True)


async def test_a_message_repeated_from_another_outbox_follows_the_first_one(
    house: House, laptop: Host, build: Host
) -> None:
    tester = await add_known_agent(build, laptop, "tester")
    build.mesh.uplink.client.receipts.gather_s = 0.01
    first = await laptop.send(f"tester@{build.node}", "run", client_message_id="c")
    await until_state(laptop, "c", "confirmed")
    await laptop.down()
    for file in laptop.mesh.outbox.store.path.parent.glob("outbox.db*"):
        file.unlink()
    await laptop.up()
    await laptop.connected()
    again = await laptop.send(f"tester@{build.node}", "run", client_message_id="c")
    assert again.status == 202
    row = await laptop.until_status("c", "done")
    assert row["message_id"] == first["message_id"], "the id that its readers know"
    assert again["message_id"] != first["message_id"]
    for key in (first["message_id"], again["message_id"], first["message_id"][:12]):
        assert (await laptop.row(key))["id"] == row["id"], "both ids name the row"
        thread = (await laptop.get(f"/v1/threads/{key}")).body
        assert [each["message_id"] for each in thread["messages"]] == [first["message_id"]]
    assert await tester.bodies() == ["run"]
    await tester.post("/v1/inbox/seen", all=True)
    await eventually(lambda: laptop.row("c"), lambda row: row["state"] == "read")


async def test_a_renamed_agent_keeps_what_it_sent_under_its_old_name(laptop: Host, build: Host, house: House) -> None:
    claude = await add_known_agent(laptop, build, "claude")
    tester = await add_known_agent(build, laptop, "tester")
    build.mesh.uplink.client.receipts.gather_s = 0.05
    to = f"tester@{build.node}"
    await claude.send(to, "run", client_message_id="sent")
    await claude.until_status("sent", "done")
    await house.down()
    await claude.send(to, "and report", client_message_id="waiting")
    await laptop.post("/v1/agents/rename", name="claude", to="planner")
    planner = laptop.acting_as("planner")
    rows = (await planner.get("/v1/outbox"))["items"]
    assert [(row["client_message_id"], row["from_agent"]) for row in rows] == [
        ("waiting", "planner"),
        ("sent", "planner"),
    ]
    await restart(laptop)
    await house.up()
    await planner.until_status("waiting", "done")
    items = await eventually(lambda: tester.get("/v1/inbox", unread="true"), lambda said: len(said["items"]) == 2)
    assert [item["from_agent"] for item in items["items"]] == ["claude", "claude"], "it was signed under that name"
    again = await planner.send(to, "run", client_message_id="sent")
    assert (again.status, again["duplicate"]) == (200, True), "a retry under the new name is the same message"
    refused = await planner.send(to, "run all", supersedes="sent")
    assert "withdraw it" in refused["detail"]
    await tester.get(f"/v1/inbox/{items['items'][0]['id']}")
    await until_state(planner, "sent", "read")
    assert (await planner.post("/v1/messages/withdraw", id="waiting"))["state"] == "withdrawing"
    await eventually(lambda: tester.get("/v1/inbox", unread="true"), lambda said: len(said["items"]) == 1)
    assert (await planner.post("/v1/messages/withdraw", id="waiting"))["state"] == "withdrawing"
    assert len((await planner.get("/v1/outbox"))["items"]) == 3, "the second withdrawal sent nothing"
