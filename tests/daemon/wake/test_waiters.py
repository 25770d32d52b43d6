"""Waiters of coding agents: one per process, woken once by new mail, ended with their program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from posthouse.daemon.wake import waker
from posthouse.model.clock import FakeClock, SystemClock, format_utc
from tests.daemon.hosts import Host, Said, eventually, make_host, running
from tests.daemon.wake.programs import NOWHERE, SECRET, Program, Start, deliver, heard, hook, programs


class AdvancedClock(SystemClock):
    """The machine's clock, moved forward by a test."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self._ahead_ns

    def boot_ns(self) -> int:
        return super().boot_ns() + self._ahead_ns

    def advance(self, seconds: float) -> None:
        self._ahead_ns += round(seconds * 1e9)


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


async def begin_wait(host: Host, program: Program, **given: str) -> asyncio.Task[Said]:
    """Start a waiter and return once the daemon holds it."""
    before = await waiter_of(host)
    task = asyncio.create_task(hook(host, program, "wait", **given))
    await eventually(lambda: waiter_of(host), lambda found: found is not None and found is not before)
    return task


async def waiter_of(host: Host) -> object:
    sessions = host.daemon.waker.sessions.of_program("claude-code")
    return sessions[0].waiter if sessions else None


def ended(said: Said) -> tuple[int, str, str]:
    return said.status, said.headers["Posthouse-Exit"], str(said.body)


async def test_new_message_wakes_the_waiter_and_only_once(host: Host, start: Start, clock: AdvancedClock) -> None:
    program = start()
    waiter = await begin_wait(host, program)
    await deliver(host, "claude", sender_name="ana")
    said = await waiter
    assert ended(said)[:2] == (200, "2")
    assert "1 new message waits: 1 from ana" in said.body
    assert SECRET not in said.body
    clock.advance(60)
    again = await begin_wait(host, program)
    assert heard(await hook(host, program, "prompt")) == ""  # announced
    assert not again.done()
    again.cancel()


async def test_message_that_came_before_the_waiter_wakes_it(host: Host, start: Start) -> None:
    program = start()
    await hook(host, program, "session-start")
    await deliver(host, "claude")
    assert ended(await hook(host, program, "wait"))[:2] == (200, "2")


async def test_newer_waiter_of_a_process_ends_the_older_one(host: Host, start: Start) -> None:
    program = start()
    waiters = [await begin_wait(host, program) for _ in range(4)]
    for older in waiters[:3]:
        assert ended(await older) == (200, "0", "")
    assert not waiters[3].done()
    await deliver(host, "claude")
    assert ended(await waiters[3])[:2] == (200, "2")


async def test_first_hooks_of_a_process_at_the_same_time_leave_one_waiter(host: Host, start: Start) -> None:
    program = start()
    waiters = [asyncio.create_task(hook(host, program, "wait")) for _ in range(8)]
    left = set(waiters)
    while len(left) > 1:
        done, left = await asyncio.wait(left, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert done
    await deliver(host, "claude")
    assert ended(await left.pop())[1] == "2"


async def test_waiters_of_two_processes_do_not_end_each_other(host: Host, start: Start) -> None:
    first = await begin_wait(host, start())
    second = asyncio.create_task(hook(host, start(), "wait"))
    await eventually(lambda: agents_waiting(host), lambda found: found == {"claude", "claude-2"})
    await deliver(host, "claude-2")
    assert ended(await second)[:2] == (200, "2")
    assert not first.done()
    first.cancel()


async def agents_waiting(host: Host) -> set[str]:
    return {each.agent for each in host.daemon.waker.sessions.of_program("claude-code") if each.waiter is not None}


async def test_waiter_ends_with_the_process_of_its_program(host: Host, start: Start) -> None:
    program = start()
    waiter = await begin_wait(host, program)
    program.kill()
    assert ended(await waiter) == (200, "0", "")


async def test_waiter_ends_with_its_session_and_with_its_last_mcp_connection(
    host: Host, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waker, "RECONNECT_S", 0.05)
    program = start()
    waiter = await begin_wait(host, program)
    assert ended(await hook(host, program, "session-end")) == (200, "0", "")
    assert ended(await waiter) == (200, "0", "")
    waiter = await begin_wait(host, program)
    async with mcp_connection(host, program):
        async with mcp_connection(host, program):
            pass
        assert not await is_done_soon(waiter)
    assert ended(await waiter) == (200, "0", "")


@asynccontextmanager
async def mcp_connection(host: Host, program: Program) -> AsyncIterator[None]:
    """The connection that `posthouse mcp` holds for a program."""
    reader, writer = await asyncio.open_unix_connection(str(host.daemon.directory.socket))
    writer.write(f"POST /v1/mcp?pid={program.pid} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


async def test_an_agent_is_woken_once_in_thirty_seconds(host: Host, start: Start, clock: AdvancedClock) -> None:
    program = start()
    await hook(host, program, "session-start")
    await deliver(host, "claude")
    assert ended(await hook(host, program, "wait"))[1] == "2"
    await deliver(host, "claude")
    waiter = await begin_wait(host, program)
    host.daemon.waker.on_mail(["claude"])
    clock.advance(25)
    assert not await is_done_soon(waiter)
    clock.advance(6)
    assert ended(await waiter)[1] == "2"


async def is_done_soon(task: asyncio.Task[Said]) -> bool:
    """Give a waiter many turns of the loop in which it could end."""
    for _ in range(200):
        await asyncio.sleep(0)
    return task.done()


async def test_mail_in_a_turn_is_left_to_the_hooks_of_the_turn(host: Host, start: Start, clock: AdvancedClock) -> None:
    program = start()
    waiter = await begin_wait(host, program)
    await hook(host, program, "prompt")
    await deliver(host, "claude", sender_name="ana")
    assert not await is_done_soon(waiter)
    assert "1 from ana" in heard(await hook(host, program, "tool"))
    await deliver(host, "claude", sender_name="bob")
    at_stop = asyncio.create_task(hook(host, program, "wait", hook_event_name="Stop"))
    assert "1 from bob" in (await at_stop).body
    assert ended(await waiter) == (200, "0", "")


async def test_interrupted_turn_does_not_keep_mail_back_for_ever(
    host: Host, start: Start, clock: AdvancedClock
) -> None:
    program = start()
    waiter = await begin_wait(host, program)
    await hook(host, program, "prompt")  # and the user presses escape: no hook tells
    await deliver(host, "claude")
    clock.advance(61)
    assert ended(await waiter)[1] == "2"


async def test_waiter_of_a_daemon_that_stops_is_told_to_come_back(host: Host, start: Start) -> None:
    waiter = await begin_wait(host, start())
    host.daemon.context.stop()
    assert (await waiter).status == 503


async def test_paused_agent_is_not_woken_until_it_is_resumed(host: Host, start: Start, clock: AdvancedClock) -> None:
    program = start()
    waiter = await begin_wait(host, program)
    until = format_utc(clock.wall_ns() + 3600 * 10**9)
    assert (await host.post("/v1/agents/pause", names=["claude"], until=until)).status == 200
    await deliver(host, "claude", sender_name="ana")
    clock.advance(40)
    assert not await is_done_soon(waiter)
    await host.post("/v1/agents/resume", names=["claude"])
    assert "1 from ana" in (await waiter).body


async def test_waiter_follows_its_agent_to_another_name(host: Host, start: Start) -> None:
    waiter = await begin_wait(host, start())
    await host.post("/v1/agents/rename", name="claude", to="reviewer")
    await deliver(host, "reviewer", sender_name="ana")
    assert "1 from ana" in (await waiter).body


async def test_status_shows_the_sessions_that_hooks_reported(host: Host, start: Start) -> None:
    assert (await hook(host, start(), "status")).body == {"sessions": []}
    program = start()
    waiter = await begin_wait(host, program)
    said = await hook(host, start(), "status")
    (session,) = said["sessions"]
    assert (session["agent"], session["pid"], session["event"], session["is_waiting"]) == (
        "claude",
        program.pid,
        "wait",
        True,
    )
    waiter.cancel()


def test_clock_of_the_limit_is_the_boot_clock() -> None:
    from posthouse.daemon.wake.mail_commands import WakeLimit

    clock = FakeClock()
    limit = WakeLimit(clock)
    assert limit.left_s("claude") <= 0
    limit.note("claude")
    clock.step_wall(-3600)
    clock.advance(10)
    assert limit.left_s("claude") == 20
    assert limit.left_s("codex") <= 0
