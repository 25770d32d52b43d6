"""Commands that the daemon runs when mail arrives: bounded, journalled, told of mail and never of its text."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon.agents.processes import find_process, require_process
from posthouse.daemon.wake import idle_programs
from posthouse.daemon.wake.idle_programs import codex_queue
from posthouse.daemon.wake.run_command import run_command
from posthouse.daemon.wake.sessions import Session
from posthouse.journal.read import read_after
from posthouse.model.clock import FakeClock
from tests.daemon.hosts import Host, eventually, make_host, restart, running
from tests.daemon.wake.programs import NOWHERE, SECRET, Program, Start, deliver, heard, hook, programs
from tests.daemon.wake.test_waiters import AdvancedClock


@pytest.fixture
def clock() -> AdvancedClock:
    return AdvancedClock()


@pytest.fixture
async def host(tmp_path: Path, clock: AdvancedClock) -> AsyncIterator[Host]:
    made = make_host(tmp_path, NOWHERE, clock=clock)
    async with running(made):
        await made.add_agent("bot")
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    with programs() as given:
        yield given


async def set_command(host: Host, command: str | None, agent: str = "bot") -> Any:
    return await host.post("/v1/agents/on-mail", name=agent, **({} if command is None else {"command": command}))


async def runs(host: Host) -> list[dict[str, Any]]:
    records = await host.daemon.agents.store.pool.run(lambda db: read_after(db, 0, 1000, {"agent.command_run"}))
    return [record.decoded_body() for record in records]


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def lines(path: Path) -> list[str]:
    return read_lines(path)


async def test_command_runs_for_new_mail_and_is_told_how_much(host: Host, tmp_path: Path) -> None:
    out = tmp_path / "out"
    await deliver(host, "bot")
    await deliver(host, "bot")
    said = await set_command(host, f"env | grep ^POSTHOUSE_ | sort > {shlex.quote(str(out))}.new; mv {out}.new {out}")
    assert said.status == 200
    await eventually(lambda: lines(out), bool)
    told = out.read_text()
    assert "POSTHOUSE_AGENT=bot\n" in told
    assert "POSTHOUSE_NEW=2\n" in told
    assert SECRET not in told
    (run,) = await eventually(lambda: runs(host), bool)
    assert (run["kind"], run["exit"]) == ("on_mail", 0)


async def test_command_runs_once_in_thirty_seconds_for_what_came_meanwhile(
    host: Host, tmp_path: Path, clock: AdvancedClock
) -> None:
    out = tmp_path / "out"
    await set_command(host, f"echo $POSTHOUSE_NEW >> {out}")
    await deliver(host, "bot")
    await eventually(lambda: lines(out), lambda seen: seen == ["1"])
    for _ in range(3):
        await deliver(host, "bot")
    assert await lines(out) == ["1"]
    clock.advance(31)
    await eventually(lambda: lines(out), lambda seen: seen == ["1", "3"])


async def test_failed_command_runs_again_with_the_same_mail(host: Host, tmp_path: Path, clock: AdvancedClock) -> None:
    out = tmp_path / "out"
    await set_command(host, f"echo $POSTHOUSE_NEW >> {out}; test $(wc -l < {out}) -ge 2")
    await deliver(host, "bot")
    await eventually(lambda: runs(host), lambda seen: [each["exit"] for each in seen] == [1])

    async def look_later() -> list[dict[str, Any]]:
        clock.advance(31)
        return await runs(host)

    await eventually(look_later, lambda seen: [each["exit"] for each in seen] == [1, 0])
    assert await lines(out) == ["1", "1"]


async def test_command_that_hangs_is_ended_with_everything_it_started(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_programs, "COMMAND_S", 0.5)
    pids = tmp_path / "pids"
    await set_command(host, f"trap '' TERM; sleep 600 & echo $! > {pids}; echo $$ >> {pids}; wait; wait")
    await deliver(host, "bot")
    (run,) = await eventually(lambda: runs(host), bool)
    assert (run["exit"], run["timeout"]) == (-9, True)
    assert [find_process(int(pid)) for pid in await lines(pids)] == [None, None]


async def test_command_and_its_mail_survive_a_restart_and_a_rename(host: Host, tmp_path: Path) -> None:
    out = tmp_path / "out"
    await set_command(host, f"echo $POSTHOUSE_AGENT >> {out}")
    await host.post("/v1/agents/rename", name="bot", to="robot")
    await restart(host)
    await deliver(host, "robot")
    await eventually(lambda: lines(out), lambda seen: seen == ["robot"])


async def test_command_can_be_removed_and_needs_an_agent(host: Host, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (await set_command(host, "true", "nobody"))["error"] == "agent_unknown"
    assert (await set_command(host, ""))["error"] == "value_invalid"
    await set_command(host, f"echo x >> {out}")
    assert (await set_command(host, None)).body == {"name": "bot", "on_mail": None}
    await deliver(host, "bot")
    assert host.daemon.waker.commands.on_mail == {}
    assert await runs(host) == []


async def test_program_with_a_waiter_is_woken_by_it_and_not_by_the_command(host: Host, start: Start) -> None:
    program = start()
    await hook(host, program, "session-start")
    await set_command(host, "true", "claude")
    waiter = asyncio.create_task(hook(host, program, "wait"))
    await eventually(lambda: _is_waiting(host), bool)
    await deliver(host, "claude")
    assert (await waiter).headers["Posthouse-Exit"] == "2"
    assert heard(await hook(host, program, "prompt")) == ""
    assert await runs(host) == []


async def _is_waiting(host: Host) -> bool:
    return any(each.waiter is not None for each in host.daemon.waker.sessions.of_program("claude-code"))


async def test_changed_command_does_not_wait_for_the_next_try_of_the_broken_one(
    host: Host, tmp_path: Path, clock: AdvancedClock
) -> None:
    out = tmp_path / "out"
    await set_command(host, "exit 1")
    await deliver(host, "bot")

    async def look_later() -> list[dict[str, Any]]:
        clock.advance(31)
        return await runs(host)

    await eventually(look_later, lambda seen: len(seen) >= 3)
    await set_command(host, f"echo $POSTHOUSE_NEW >> {out}")  # the broken one would run again in minutes
    clock.advance(31)
    await eventually(lambda: lines(out), lambda seen: seen == ["1"])


async def test_command_does_not_act_for_the_agent_that_started_the_daemon(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_AGENT", "claude")
    monkeypatch.setenv("CLAUDECODE", "1")
    ended = await run_command(("/bin/sh", "-c", 'test -z "$POSTHOUSE_AGENT$CLAUDECODE"'), {}, 20, host.daemon.clock)
    assert ended.exit == 0


# the inbox of a Claude Code session


@asynccontextmanager
async def inbox_socket(path: Path) -> AsyncIterator[list[Any]]:
    """The socket on which a session takes messages; gives the lines that were written to it."""
    taken: list[Any] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            taken.append(json.loads(line))
        writer.close()

    server = await asyncio.start_unix_server(take, str(path))
    try:
        yield taken
    finally:
        server.close()
        await server.wait_closed()


async def hook_with_inbox(host: Host, program: Program, path: Path, event: str, **given: Any) -> None:
    headers = {"Posthouse-Inbox": str(path), "Posthouse-Inbox-Token": "t0ken"}
    target = f"/v1/hooks/claude-code/{event}"
    assert (await host.ask("POST", target, params={"pid": program.pid}, json=given, headers=headers)).status == 200


async def test_session_whose_waiter_is_gone_is_woken_through_its_inbox_once_it_is_quiet(
    host: Host, start: Start, tmp_path: Path, clock: AdvancedClock
) -> None:
    program, path = start(), tmp_path / "s"
    async with inbox_socket(path) as taken:
        await hook_with_inbox(host, program, path, "session-start")
        await hook_with_inbox(host, program, path, "prompt", permission_mode="default")  # interrupted: no Stop follows
        await deliver(host, "claude", sender_name="ana")
        assert await runs(host) == []
        clock.advance(61)
        (run,) = await eventually(lambda: runs(host), bool)
        assert (run["kind"], run["exit"]) == ("claude_inbox", 0)
        assert taken[0] == {"type": "auth", "token": "t0ken"}
        assert "1 new message waits: 1 from ana" in taken[1]["message"]["content"]
        assert SECRET not in str(taken)
    assert heard(await hook(host, program, "prompt")) == ""


async def test_inbox_of_a_session_that_waits_or_bypasses_permissions_or_is_gone_is_not_used(
    host: Host, start: Start, tmp_path: Path, clock: AdvancedClock
) -> None:
    program, path = start(), tmp_path / "s"
    async with inbox_socket(path) as taken:
        await hook_with_inbox(host, program, path, "session-start")
        waiter = asyncio.create_task(hook(host, program, "wait"))
        await eventually(lambda: _is_waiting(host), bool)
        clock.advance(61)
        await deliver(host, "claude")
        assert (await waiter).headers["Posthouse-Exit"] == "2"
        await hook_with_inbox(host, program, path, "prompt", permission_mode="bypassPermissions")
        clock.advance(61)
        await deliver(host, "claude")
        assert heard(await hook(host, program, "tool"))
        assert taken == []
    await hook_with_inbox(host, program, path, "prompt", permission_mode="default")
    await deliver(host, "claude", sender_name="bob")
    clock.advance(61)
    (run,) = await eventually(lambda: runs(host), bool)  # its socket is gone
    assert (run["kind"], run["exit"]) == ("claude_inbox", 1)
    assert "1 from bob" in heard(await hook(host, program, "tool"))


# codex


def codex_process(root: Path, pid: int, *words: str) -> None:
    folder = root / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in words))
    (folder / "environ").write_bytes(b"PATH=/bin\0CODEX_HOME=/c\0HOME=/h\0")
    (folder / "exe").symlink_to("/opt/codex")


def test_idle_codex_is_woken_by_its_own_queue(tmp_path: Path, start: Start) -> None:
    clock, process = FakeClock(), require_process(start().pid)
    codex_process(tmp_path, process.pid, "codex")
    session = Session(process, "codex", "codex")
    session.note("prompt", "s1", clock, is_turn=True)
    assert codex_queue(session, clock, "mail", tmp_path) is None  # in a turn its hooks announce mail
    session.note("turn-end", "s1", clock, is_turn=False)
    queue = codex_queue(session, clock, "mail", tmp_path)
    assert queue is not None
    assert queue.argv == ("/opt/codex", "queue", "--thread", "s1", "--message", "mail")
    assert queue.env == {"CODEX_HOME": "/c", "HOME": "/h"}


def test_codex_exec_takes_nothing_from_a_queue(tmp_path: Path, start: Start) -> None:
    clock, process = FakeClock(), require_process(start().pid)
    codex_process(tmp_path, process.pid, "codex", "exec", "do it")
    session = Session(process, "codex", "codex")
    session.note("turn-end", "s1", clock, is_turn=False)
    assert codex_queue(session, clock, "mail", tmp_path) is None
