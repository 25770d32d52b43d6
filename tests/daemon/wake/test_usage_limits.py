"""Usage limits: a program whose account has hit one is not woken before the time that it names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from posthouse.daemon.wake.usage_limits import LIMIT_S, resume_at_ns
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.limits import SECOND_NS
from tests.daemon.hosts import Host, make_host, running
from tests.daemon.wake.programs import NOWHERE, Start, deliver, hook, programs
from tests.daemon.wake.test_waiters import AdvancedClock, begin_wait, is_done_soon

NOW = "2026-11-16T09:30:00Z"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("You've hit your limit · resets 3pm (UTC)", "2026-11-16T15:00:00Z"),
        ("You've hit your session limit · resets 9:15am (UTC)", "2026-11-17T09:15:00Z"),
        ("resets 12am (Europe/Berlin)", "2026-11-16T23:00:00Z"),
        ("weekly limit reached ∙ resets Nov 20, 8am (UTC)", "2026-11-20T08:00:00Z"),
        ("Claude AI usage limit reached|1794832200", "2026-11-16T12:30:00Z"),
    ],
)
def test_time_that_a_program_names_is_the_end_of_the_pause(text: str, at: str) -> None:
    assert format_utc(resume_at_ns(text, parse_utc(NOW)))[:19] == at[:19]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Please try again later.",
        "resets 25:00 (UTC)",
        "resets Feb 31, 8am (UTC)",
        "resets Jan 5, 8am (UTC)",
        "limit reached|9999999999",
        "resets",
    ],
)
def test_sentence_without_a_time_to_believe_means_a_short_pause(text: str) -> None:
    assert resume_at_ns(text, parse_utc(NOW)) == parse_utc(NOW) + LIMIT_S * SECOND_NS


@pytest.fixture
def clock() -> AdvancedClock:
    return AdvancedClock()


@pytest.fixture
async def host(tmp_path: Path, clock: AdvancedClock) -> AsyncIterator[Host]:
    made = make_host(tmp_path, NOWHERE, clock=clock)
    async with running(made):
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    with programs() as given:
        yield given


async def test_agent_is_paused_by_the_hook_of_a_turn_that_hit_a_limit_and_woken_after_it(
    host: Host, start: Start, clock: AdvancedClock
) -> None:
    program = start()
    await hook(host, program, "session-start")
    assert (await hook(host, program, "turn-failed", error="rate_limit")).body == ""
    (agent,) = (await host.get("/v1/agents"))["items"]
    assert (agent["paused"]["reason"], agent["paused"]["set_by"]) == ("usage limit of claude-code", "hook")
    waiter = await begin_wait(host, program, hook_event_name="StopFailure")
    await deliver(host, "claude", sender_name="ana")
    assert not await is_done_soon(waiter)
    clock.advance(LIMIT_S + 31)
    assert "1 from ana" in (await waiter).body


async def test_pause_of_a_limit_ends_when_the_model_answers_again(host: Host, start: Start) -> None:
    program = start()
    for event, name in (("tool", "PostToolUse"), ("wait", "Stop")):
        await hook(host, program, "turn-failed", error="rate_limit")
        assert await paused_by(host) == "hook"
        await hook(host, program, "prompt")  # the user asks again, which proves nothing
        assert await paused_by(host) == "hook"
        if event == "wait":
            (await begin_wait(host, program, hook_event_name=name)).cancel()
        else:
            await hook(host, program, event, hook_event_name=name)
        assert await paused_by(host) is None


async def paused_by(host: Host) -> str | None:
    (agent,) = (await host.get("/v1/agents"))["items"]
    return None if agent["paused"] is None else str(agent["paused"]["set_by"])


async def test_other_failures_and_pauses_of_a_person_are_left_alone(
    host: Host, start: Start, clock: AdvancedClock
) -> None:
    program = start()
    await hook(host, program, "turn-failed", error="server_error")
    assert await paused_by(host) is None
    until = format_utc(clock.wall_ns() + 3600 * SECOND_NS)
    await host.post("/v1/agents/pause", names=["claude"], until=until, reason="night")
    await hook(host, program, "turn-failed", error="rate_limit")
    await hook(host, program, "tool")
    assert await paused_by(host) == "person"
