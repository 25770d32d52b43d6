"""Paused agents: mail waits and wakes nothing, senders and people see the state, the end comes gently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.daemon import AsyncDaemonClient, DaemonClient
from posthouse.daemon.agents.pauses import FIRST_GAP_S, GAP_S
from posthouse.daemon.wake.mail_commands import WAKE_EVERY_S
from posthouse.model.clock import FakeClock, format_utc
from posthouse.model.limits import SECOND_NS
from tests.client.waiting import until
from tests.daemon.hosts import Host, eventually, make_host, restart, running
from tests.daemon.test_inbox import item
from tests.daemon.wake.test_mail_commands import lines


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def host(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Host]:
    """A daemon without a relay, with two agents of one program, on a clock that the test moves."""
    made = make_host(tmp_path, "ws://127.0.0.1:9", "a", clock=clock)
    async with running(made):
        for name in ("claude", "claude-2"):
            await made.post("/v1/agents", name=name, program="claude-code")
        yield made


def acting(host: Host, agent: str = "claude") -> AsyncDaemonClient:
    return AsyncDaemonClient(DaemonClient(host.settings.directory).place, agent=agent)


def at(clock: FakeClock, seconds: float) -> str:
    return format_utc(clock.wall_ns() + round(seconds * SECOND_NS))


async def put(host: Host, *numbers: int) -> None:
    await host.mesh.inbox.put([item(number)._replace(**mailed_to("claude")) for number in numbers])


def mailed_to(agent: str) -> dict[str, Any]:
    return {"to_agent": agent, "agents": (agent,)}


async def waited(client: AsyncDaemonClient) -> list[str | None]:
    return [each.body for each in await client.wait(0)]


async def test_mail_of_a_paused_agent_waits_and_is_readable(host: Host, clock: FakeClock) -> None:
    client = acting(host)
    try:
        await client.pause_agents(until=at(clock, 3600), reason="usage limit")
        await put(host, 1, 2)
        assert await waited(client) == []
        assert [each.body for each in await client.inbox(unread=True)] == ["m1", "m2"]
    finally:
        await client.close()


async def test_after_a_pause_mail_comes_one_by_one_with_gaps_then_freely(host: Host, clock: FakeClock) -> None:
    client = acting(host)
    try:
        await client.pause_agents(until=at(clock, 3600))
        await put(host, 1, 2)
        clock.advance(3600 + FIRST_GAP_S[1])
        assert await waited(client) == ["m1"]
        assert await waited(client) == []
        clock.advance(GAP_S[1])
        assert await waited(client) == ["m2"]
        clock.advance(GAP_S[1])
        assert await waited(client) == []
        await put(host, 3, 4)
        assert await waited(client) == ["m3", "m4"]
    finally:
        await client.close()


async def test_a_pause_survives_a_restart_and_a_rename(host: Host, clock: FakeClock) -> None:
    await host.post("/v1/agents/pause", names=["claude"], until=at(clock, 3600), reason="night")
    await restart(host)
    shown = (await host.get("/v1/agents/claude"))["paused"]
    assert (shown["reason"], shown["set_by"]) == ("night", "person")
    await host.post("/v1/agents/rename", name="claude", to="planner")
    assert (await host.get("/v1/agents/planner"))["paused"]["reason"] == "night"


async def test_agents_that_share_an_account_pause_together_and_start_apart(host: Host, clock: FakeClock) -> None:
    answer = await host.post("/v1/agents/pause", program="claude-code", until=at(clock, 60), reason="usage limit")
    assert [each["name"] for each in answer["items"]] == ["claude", "claude-2"]
    pauses = host.daemon.pauses
    held = [pauses.held_s(name) for name in ("claude", "claude-2")]
    assert held[0] != held[1] and all(60 <= each <= 60 + FIRST_GAP_S[1] for each in held)


async def test_a_resumed_agent_wakes_at_once(host: Host, clock: FakeClock) -> None:
    client = acting(host)
    try:
        await client.pause_agents(until=at(clock, 3600))
        await put(host, 1)
        waiting = asyncio.create_task(client.wait(30))
        await until(lambda: host.daemon.context.waiters.count == 1)
        assert [each.name for each in await client.resume_agents()] == ["claude"]
        assert [each.body for each in await waiting] == ["m1"]
        assert await client.resume_agents() == []
    finally:
        await client.close()


async def test_the_pause_of_one_agent_holds_back_no_other(host: Host, clock: FakeClock) -> None:
    await host.post("/v1/agents/pause", names=["claude"], until=at(clock, 3600))
    await host.mesh.inbox.put([item(1)._replace(**mailed_to("claude-2"))])
    client = acting(host, "claude-2")
    try:
        assert await waited(client) == ["m1"]
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"names": ["claude"], "until": "2001-01-01T00:00:00Z"}, "pause_invalid"),
        ({"names": ["claude"], "until": "2099-01-01T00:00:00Z"}, "pause_invalid"),
        ({"names": ["claude"], "until": "tomorrow"}, "value_invalid"),
        ({"names": ["nobody"], "until": "2099-01-01T00:00:00Z"}, "agent_unknown"),
        ({"program": "none", "until": "2099-01-01T00:00:00Z"}, "body_invalid"),
        ({"until": "2099-01-01T00:00:00Z"}, "body_invalid"),
    ],
)
async def test_a_pause_that_makes_no_sense_is_refused(host: Host, body: dict[str, Any], code: str) -> None:
    answer = await host.post("/v1/agents/pause", **body)
    assert answer["error"] == code
    assert host.daemon.pauses.find("claude") is None


# waking


async def test_a_command_for_new_mail_runs_after_the_pause_one_message_at_a_time(
    host: Host, clock: FakeClock, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    await host.post("/v1/agents/on-mail", name="claude", command=f"echo $POSTHOUSE_NEW >> {out}")
    await host.post("/v1/agents/pause", names=["claude"], until=at(clock, 3600))
    await put(host, 1, 2)
    assert (await host.daemon.waker._announcer.claim_wake("claude")).waiting == ()
    assert not out.exists()
    await host.post("/v1/agents/resume", names=["claude"])
    clock.advance(WAKE_EVERY_S)
    await eventually(lambda: lines(out), lambda seen: seen == ["1"])
    clock.advance(WAKE_EVERY_S)
    await eventually(lambda: lines(out), lambda seen: seen == ["1", "1"])


async def test_a_pause_that_begins_while_mail_is_claimed_holds_it_back(
    host: Host, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = host.daemon.waker._announcer
    look_for_abandoned = announcer._release_abandoned

    async def pause_then_look(agent: str) -> None:
        await host.post("/v1/agents/pause", names=[agent], until=at(clock, 3600))
        await look_for_abandoned(agent)

    await put(host, 1, 2)
    monkeypatch.setattr(announcer, "_release_abandoned", pause_then_look)
    assert not (await announcer.claim_wake("claude")).waiting


async def test_a_pause_that_begins_and_ends_while_mail_is_claimed_releases_one_message_at_a_time(
    host: Host, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = host.daemon.waker._announcer
    claim = announcer._claim

    async def pause_and_resume_then_claim(agent: str, *given: Any, **options: Any) -> Any:
        monkeypatch.setattr(announcer, "_claim", claim)
        await host.post("/v1/agents/pause", names=[agent], until=at(clock, 3600))
        await host.post("/v1/agents/resume", names=[agent])
        return await claim(agent, *given, **options)

    await put(host, 1, 2)
    monkeypatch.setattr(announcer, "_claim", pause_and_resume_then_claim)
    assert not (await announcer.claim_wake("claude")).waiting
    [waiting] = (await announcer.claim_wake("claude")).waiting
    assert waiting.messages == 1


async def test_a_pause_that_ends_after_an_empty_look_is_not_finished_by_it(host: Host, clock: FakeClock) -> None:
    pauses = host.daemon.context.pauses
    before = pauses.latest("claude")
    await pauses.pause(["claude"], clock.wall_ns() + SECOND_NS, "", "person")
    await pauses.resume(["claude"])
    await pauses.finish("claude", before)
    assert pauses.is_releasing("claude")


async def test_a_pause_that_begins_while_an_earlier_one_is_finished_stays(host: Host, clock: FakeClock) -> None:
    pauses = host.daemon.context.pauses
    await pauses.pause(["claude"], clock.wall_ns() + SECOND_NS, "", "person")
    clock.advance(1)
    assert pauses.is_releasing("claude")
    later_ns = clock.wall_ns() + 3600 * SECOND_NS
    ended = pauses.latest("claude")
    await asyncio.gather(pauses.pause(["claude"], later_ns, "", "person"), pauses.finish("claude", ended))
    for _ in range(2):
        pause = pauses.find("claude")
        assert pause is not None and pause.until_ns == later_ns
        pauses.reload()


async def test_reports_of_failures_wake_no_agent_and_come_with_the_next_mail(host: Host) -> None:
    client = acting(host)
    announcer = host.daemon.waker._announcer
    try:
        failure = item(1)._replace(meta='{"failure":true}', **mailed_to("claude"))
        await host.mesh.inbox.put([failure])
        assert await waited(client) == []
        assert (await announcer.claim_wake("claude")).waiting == ()
        await put(host, 2)
        assert await waited(client) == ["m1", "m2"]
        assert len((await announcer.claim_wake("claude")).waiting) == 1
    finally:
        await client.close()


# what senders see


async def test_a_sender_to_a_paused_agent_of_its_host_is_told(host: Host, clock: FakeClock) -> None:
    await host.post("/v1/agents/pause", names=["claude"], until=at(clock, 3600), reason="usage limit")
    answer = await host.send("claude", "when you are back")
    assert (answer.status, answer["recipient_paused"]["reason"]) == (202, "usage limit")
    assert "recipient_paused" not in (await host.send("claude-2", "now")).body
    clock.advance(3600)
    assert "recipient_paused" not in (await host.send("claude", "now")).body


async def test_other_hosts_see_that_an_agent_is_paused(alice: Host, bob: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.daemon.registrar.PUBLISH_EVERY_S", 0.05)
    await alice.post("/v1/agents", name="claude")
    until = format_utc(alice.daemon.clock.wall_ns() + 3_600 * SECOND_NS)
    await alice.post("/v1/agents/pause", names=["claude"], until=until, reason="night")

    async def listed() -> Any:
        peers = (await bob.get("/v1/peers"))["peers"]
        return [agent for peer in peers if peer["node"] == alice.node for agent in peer["agents"]]

    found = await eventually(listed, lambda agents: any(agent.get("pause_reason") for agent in agents))
    assert (found[0]["name"], found[0]["pause_reason"]) == ("claude", "night")
    answer = await bob.send(f"claude@{alice.node}", "when you are back")
    assert answer["recipient_paused"]["reason"] == "night"
