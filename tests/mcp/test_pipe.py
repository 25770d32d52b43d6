"""`posthouse mcp` is a small pipe: what it costs, who it is, and how it outlives its daemon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from posthouse.mcp import protocol
from posthouse.mcp.pipe import SENDS_MAX, DaemonStream, directories, read_options
from posthouse.mcp.server import name_of_program
from tests.client.waiting import until
from tests.daemon.hosts import Host
from tests.mcp.agents import BOUND_S, MODES, command, environment, stdio_agent

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "claude-code"}},
}
#: starts a program in a process between this one and the program, so that the program has a parent of its own
APART = ("-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))", sys.executable)
MOST_MEMORY_KB = 16_000


class Program:
    """A coding agent's program that has started the pipe."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def say(self, *messages: Any) -> None:
        assert self.process.stdin is not None
        lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages]
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))
        await self.process.stdin.drain()

    async def hear(self) -> Any:
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            return json.loads(await self.process.stdout.readline())

    async def ask(self, message: Any) -> Any:
        await self.say(message)
        return await self.hear()

    async def call(self, request_id: int, tool: str, **arguments: Any) -> Any:
        answer = await self.ask(call_of(request_id, tool, **arguments))
        assert answer["id"] == request_id
        return json.loads(answer["result"]["content"][0]["text"])

    async def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(BOUND_S):
            return await self.process.wait()


def call_of(request_id: int, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


@asynccontextmanager
async def program_at(directory: Path, *flags: str, before: Sequence[str] = ()) -> AsyncIterator[Program]:
    """A program with a pipe to the daemon in a directory."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *before, *command(directory, *flags),
        env=environment(directory.parent), stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 22,
    )  # fmt: skip
    try:
        yield Program(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        async with asyncio.timeout(BOUND_S):
            await process.wait()


# what it costs


def test_the_pipe_loads_the_standard_library_alone(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from posthouse.cli.main import main\n"
        "try:\n"
        f"    main(['mcp', '--dir', {str(tmp_path / 'd')!r}])\n"
        "finally:\n"
        "    sys.stderr.write(' '.join(sys.modules))\n"
    )
    lines = "".join(json.dumps(each) + "\n" for each in (HELLO, call_of(1, "inbox")))
    done = subprocess.run(
        [sys.executable, "-c", code], input=lines, capture_output=True, text=True, env=environment(tmp_path), timeout=60
    )
    assert len(done.stdout.splitlines()) == 2
    loaded = done.stderr.split()
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"posthouse", "__main__"}
    # what the interpreter's own start brings along
    assert {name for name in foreign if not name.startswith(("_", "sitecustomize"))} == set()
    assert {"asyncio", "argparse", "http", "ssl"}.isdisjoint(loaded)


def resident_kb(pid: int) -> int:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def test_a_connected_pipe_takes_little_memory(alice: Host) -> None:
    async with program_at(alice.settings.directory) as program:
        assert (await program.ask(HELLO))["result"]["serverInfo"]["name"] == "posthouse"
        assert resident_kb(program.process.pid) < MOST_MEMORY_KB
        assert await program.end() == 0


# who it is


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("claude-code", "claude"),
        ("codex-mcp-client", "codex"),
        ("gemini-cli-mcp-client", "gemini"),
        ("Visual Studio Code", "visual-studio-code"),
        ("cursor-vscode", "cursor"),
        ("Ünïcode!", "n-code"),
        ("---", "agent"),
        ("x" * 90, "x" * 32),
    ],
)
def test_an_agent_is_called_like_its_program(program: str, name: str) -> None:
    assert name_of_program(program) == name


async def test_a_second_program_of_the_same_name_gets_a_number(alice: Host) -> None:
    place = alice.settings.directory
    async with program_at(place, before=APART) as one, program_at(place, before=APART) as two:
        await one.ask(HELLO)
        await two.ask(HELLO)
        assert (await one.call(1, "who"))["you"] == "claude@alice"
        assert (await two.call(1, "who"))["you"] == "claude-2@alice"
    async with program_at(place, before=APART) as next_one:
        await next_one.ask(HELLO)
        assert (await next_one.call(1, "who"))["you"] == "claude@alice"


async def test_a_program_that_starts_its_pipe_again_keeps_its_name(alice: Host) -> None:
    for _ in range(2):
        async with program_at(alice.settings.directory, "--as", "reviewer") as program:
            await program.ask(HELLO)
            assert (await program.call(1, "who"))["you"] == "reviewer@alice"
    agents = (await alice.get("/v1/agents"))["items"]
    assert [(agent["name"], agent["program"], agent["project"]) for agent in agents] == [
        ("mcp", None, None),
        ("reviewer", "claude-code", str(Path.cwd())),
    ]


async def test_the_name_that_a_hook_gave_the_program_is_its_name(alice: Host) -> None:
    await alice.post("/v1/agents", name="helper", pid=os.getpid())
    async with program_at(alice.settings.directory) as program:
        await program.ask(HELLO)
        assert (await program.call(1, "who"))["you"] == "helper@alice"


async def test_a_retired_name_is_refused_in_every_call(alice: Host) -> None:
    await alice.post("/v1/agents", name="claude")
    await alice.post("/v1/agents/retire", name="claude", reason="its project is over")
    async with program_at(alice.settings.directory) as program:
        assert "result" in await program.ask(HELLO)
        refused = await program.call(1, "inbox")
        assert refused["code"] == "agent_retired" and "its project is over" in refused["message"]


@pytest.mark.parametrize(
    "words", [["--help"], ["--as"], ["--as", ""], ["--as", "Nobody Special"], ["--verbose"], ["x"]]
)
def test_words_that_are_not_the_pipes_are_left_to_the_command_line(words: list[str]) -> None:
    assert read_options(words) is None


def test_an_invalid_name_is_an_error_of_the_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command(tmp_path, "--as", "No Body", "--json")],
        input="", capture_output=True, text=True, env=environment(tmp_path), timeout=60,
    )  # fmt: skip
    assert json.loads(done.stderr)["code"] == "agent_name_invalid"


def test_the_daemon_is_looked_for_where_other_commands_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("POSTHOUSE_HOME", raising=False)
    assert directories(None, None)[0] == str(tmp_path / ".posthouse" / "daemon")
    monkeypatch.setenv("POSTHOUSE_HOME", "~/elsewhere")
    assert directories(None, None)[0] == str(tmp_path / "elsewhere" / "daemon")
    assert directories("~/d", None) == [str(tmp_path / "d")]


# how it outlives its daemon


@pytest.mark.parametrize("mode", MODES)
async def test_a_session_that_began_without_a_daemon_works_when_there_is_one(mode: str, alice: Host) -> None:
    await alice.down()
    async with stdio_agent(alice.settings.directory, mode=mode) as agent:
        refused = await agent.refused("inbox")
        assert refused["code"] == "daemon_unreachable" and "posthouse up" in refused["hint"]
        await alice.up()
        assert (await agent.call("inbox"))["messages"] == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_restart_of_the_daemon_does_not_end_the_session(mode: str, alice: Host) -> None:
    async with stdio_agent(alice.settings.directory, mode=mode) as agent:
        before = (await agent.call("who"))["you"].partition("@")[0]  # the host's name comes with the roster
        for _ in range(2):
            await alice.down()
            await alice.up()
            assert (await agent.call("who"))["you"].partition("@")[0] == before


async def test_a_call_in_the_pause_between_two_daemons_waits_for_the_next(alice: Host) -> None:
    async with program_at(alice.settings.directory) as program:
        await program.ask(HELLO)
        await alice.down()
        await program.say(call_of(1, "inbox"))
        await alice.up()
        assert json.loads((await program.hear())["result"]["content"][0]["text"]) == {"messages": []}


async def test_a_call_and_the_end_of_the_daemon_may_come_at_the_same_moment(alice: Host) -> None:
    async with program_at(alice.settings.directory) as program:
        await program.ask(HELLO)
        program.process.send_signal(signal.SIGSTOP)
        await alice.down()
        await program.say(call_of(1, "inbox"))
        await alice.up()
        program.process.send_signal(signal.SIGCONT)
        assert json.loads((await program.hear())["result"]["content"][0]["text"]) == {"messages": []}


async def test_a_message_whose_answer_was_lost_is_sent_once(alice: Host) -> None:
    target = f"/v1/mcp?pid={os.getpid()}&as=claude&key=0123456789abcdef"
    line = json.dumps(call_of(7, "send", to="alice", message="exactly this once")).encode()
    place = str(alice.settings.directory)
    answers = [await asyncio.to_thread(exchange, place, target, line) for _ in range(2)]
    assert answers[0]["result"]["structuredContent"]["id"] == answers[1]["result"]["structuredContent"]["id"]
    other = await asyncio.to_thread(exchange, place, target.replace("012", "fff"), line)
    assert other["result"]["structuredContent"]["id"] != answers[0]["result"]["structuredContent"]["id"]
    assert await alice.until_bodies(2) == ["exactly this once"] * 2


def exchange(place: str, target: str, line: bytes) -> Any:
    """Send one line over a connection of its own, as a pipe does after its daemon was lost."""
    here = Path.cwd()
    stream = DaemonStream(place, target)
    try:
        stream.write(line)
        while not (lines := stream.read()):
            pass
    finally:
        stream.close()
        os.chdir(here)
    return protocol.parse(lines[0])


async def test_a_request_that_ends_every_daemon_is_given_up(tmp_path: Path) -> None:
    seen = 0

    async def fall_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):  # the pipe may end first
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await reader.readuntil(b"tools/call")
            seen += 1

    place = tmp_path / "d"
    place.mkdir()
    server = await asyncio.start_unix_server(fall_over, place / "sock")
    async with server, program_at(place) as program:
        refused = await program.call(1, "inbox")
        assert refused["code"] == "daemon_unreachable"
    assert seen == SENDS_MAX


async def test_a_daemon_that_does_not_know_the_pipe_is_named_as_the_reason(tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):  # the pipe may end first
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    place = tmp_path / "d"
    place.mkdir()
    async with await asyncio.start_unix_server(refuse, place / "sock"), program_at(place) as program:
        refused = await program.call(1, "inbox")
        assert refused["code"] == "daemon_unreachable" and "restart it" in refused["message"]


async def test_a_home_with_a_long_path_is_reached(alice: Host, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    (long / "d").symlink_to(alice.settings.directory)
    async with program_at(long / "d") as program:
        await program.ask(HELLO)
        assert (await program.call(1, "inbox"))["messages"] == []


# what comes in


async def test_lines_that_are_no_requests_get_errors_and_the_session_goes_on(alice: Host) -> None:
    async with program_at(alice.settings.directory) as program:
        await program.ask(HELLO)
        for line, code in (
            (b"hello", protocol.PARSE_ERROR),
            (b"[]", protocol.INVALID_REQUEST),
            (b'{"id": 1, "method": "ping"}', protocol.INVALID_REQUEST),
            (b"\xff\xfe", protocol.PARSE_ERROR),
        ):
            answer = await program.ask(line)
            assert (answer["id"], answer["error"]["code"]) == (None, code)
        await program.say(b"", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert await program.ask({"jsonrpc": "2.0", "id": 9, "method": "ping"}) == {
            "jsonrpc": "2.0",
            "id": 9,
            "result": {},
        }
        unknown = await program.ask({"jsonrpc": "2.0", "id": 10, "method": "resources/list"})
        assert unknown["error"]["code"] == protocol.METHOD_NOT_FOUND


async def test_a_line_that_is_too_long_is_refused_and_the_next_is_answered(alice: Host) -> None:
    async with program_at(alice.settings.directory) as program:
        await program.ask(HELLO)
        await program.say(call_of(1, "send", to="alice", message="x" * (2 << 20)))
        refused = await program.hear()
        assert (refused["id"], refused["error"]["code"]) == (1, protocol.INVALID_REQUEST)
        assert (await program.call(2, "inbox"))["messages"] == []


async def test_a_waiting_call_holds_up_no_other_and_can_be_cancelled(alice: Host) -> None:
    waiters = alice.daemon.context.waiters
    async with program_at(alice.settings.directory) as program:
        await program.ask(HELLO)
        await program.say(call_of(1, "wait", seconds=50))
        await until(lambda: waiters.count == 1)
        assert (await program.call(2, "inbox"))["messages"] == []
        await program.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await until(lambda: waiters.count == 0)
        assert (await program.call(3, "inbox"))["messages"] == []


async def test_a_program_that_is_killed_ends_its_pipe_and_its_calls(alice: Host) -> None:
    waiters = alice.daemon.context.waiters
    async with program_at(alice.settings.directory) as program:
        await program.ask(HELLO)
        await program.say(call_of(1, "wait", seconds=50))
        await until(lambda: waiters.count == 1)
        program.process.kill()
        await until(lambda: waiters.count == 0)


async def test_calls_that_run_at_the_end_of_the_input_are_answered(tmp_path: Path, alice: Host) -> None:
    async with program_at(alice.settings.directory) as program:
        await program.say(HELLO, call_of(1, "inbox"))
        assert program.process.stdin is not None
        program.process.stdin.close()
        assert [(await program.hear())["id"], (await program.hear())["id"]] == [0, 1]
        async with asyncio.timeout(BOUND_S):
            assert await program.process.wait() == 0
