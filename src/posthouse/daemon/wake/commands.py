"""Commands that the daemon runs when mail arrives: a user's own for an agent, and `codex queue` for an idle Codex.

A command runs in a session of its own, with a time limit after which the whole group of processes is killed, one at a
time per agent and at most once in 30 seconds. It is told that mail waits, never what the mail says. Every run is
journalled. If a command fails, its messages count as not announced, and it runs again later.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw
import structlog

from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.wake.announcements import Announcer, Claim
from posthouse.daemon.wake.programs import TURN_END, announcement
from posthouse.daemon.wake.sessions import Session, Sessions
from posthouse.journal.append import JournalTransaction
from posthouse.model.address import AGENT_ENV
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.sqlite.statements import Statements

log = structlog.get_logger(__name__)
SQL = Statements("posthouse.daemon.wake", "commands.sql")
WAKE_EVERY_S = 30
COMMAND_S = 60.0
COMMAND_MAX_CHARS = 4_096
NEW_ENV = "POSTHOUSE_NEW"
_TERM_S = 2.0
_RETRY_MAX_S = 3_600
_LOOK_S = 1.0
_SHELL = "/bin/sh"
#: set by the session of an agent that may have started the daemon: its commands act for other agents
_SESSION_VARIABLES = frozenset(
    {AGENT_ENV, "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "CLAUDE_ENV_FILE"}
)


class Command(NamedTuple):
    """A program to start."""

    #: on_mail or codex_queue
    kind: str
    argv: Sequence[str]
    env: Mapping[str, str]


class Ended(NamedTuple):
    """How a command ended."""

    #: exit code; minus the signal that ended it
    exit: int
    ms: int
    is_timeout: bool


class WakeLimit:
    """At most one wake per agent and 30 seconds, whichever way it is woken, and none while the agent is paused."""

    def __init__(self, clock: Clock, paused_s: Callable[[str], float] = lambda _agent: 0.0) -> None:
        self._clock = clock
        self._paused_s = paused_s
        #: agent -> boot time of its last wake
        self._woken_ns: dict[str, int] = {}

    def left_s(self, agent: str) -> float:
        """Return how long the agent must not be woken, zero if it may be."""
        paused_s, last_ns = self._paused_s(agent), self._woken_ns.get(agent)
        if last_ns is None:
            return paused_s
        return max(paused_s, WAKE_EVERY_S - (self._clock.boot_ns() - last_ns) / SECOND_NS)

    def note(self, agent: str) -> None:
        """Take note that an agent was woken."""
        self._woken_ns[agent] = self._clock.boot_ns()


async def run_command(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, clock: Clock) -> Ended:
    """Run a command to its end or its time limit; its output is discarded, because it may hold text of messages."""
    started_ns = clock.boot_ns()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={name: value for name, value in os.environ.items() if name not in _SESSION_VARIABLES} | dict(env),
            cwd=Path.home(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as failure:
        log.warning("command_not_started", command=argv[0], reason=failure.strerror)
        return Ended(127, 0, False)
    is_timeout = False
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        is_timeout = True
    finally:
        await _end_group(process)
    code = process.returncode
    return Ended(127 if code is None else code, (clock.boot_ns() - started_ns) // MILLISECOND_NS, is_timeout)


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End what is left of the command's group of processes."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TERM_S):
                await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


class MailCommands:
    """The commands of one home."""

    def __init__(self, agents: AgentRegistry, announcer: Announcer, sessions: Sessions, limit: WakeLimit) -> None:
        self._agents = agents
        self._announcer = announcer
        self._sessions = sessions
        self._limit = limit
        self._clock = agents.store.clock
        self._on_mail = agents.store.pool.run_blocking(_read_commands)
        #: agent -> the task that looks at its mail
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._is_closed = False

    @property
    def on_mail(self) -> Mapping[str, str]:
        """Agent -> the command that its user has set."""
        return self._on_mail

    def start(self) -> None:
        """Look at the mail that arrived while the daemon was down."""
        self.look(self._on_mail)

    async def close(self) -> None:
        """Stop every command."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def set_command(self, agent: str, command: str | None) -> None:
        """Set or remove the command that runs when mail for an agent arrives."""
        self._agents.require_active(agent)
        if command is not None and not 0 < len(command) <= COMMAND_MAX_CHARS:
            raise error("value_invalid", name="on_mail", reason=f"1 to {COMMAND_MAX_CHARS} characters")
        await self._agents.store.writer.run(lambda tx: _set_command(tx, agent, command))
        self.reload()
        self.look([agent])

    def reload(self) -> None:
        """Read the commands again, as after an agent got another name."""
        self._on_mail = self._agents.store.pool.run_blocking(_read_commands)

    def look(self, agents: Iterable[str]) -> None:
        """Run the commands of agents that have new mail."""
        for agent in () if self._is_closed else set(agents):
            if agent in self._tasks:
                self._again.add(agent)
            elif self._command(agent, "") is not None:
                task = asyncio.get_running_loop().create_task(self._serve(agent))
                self._tasks[agent] = task
                task.add_done_callback(partial(self._on_end, agent))

    def _on_end(self, agent: str, task: asyncio.Task[None]) -> None:
        del self._tasks[agent]
        if not task.cancelled() and task.exception() is not None:
            log.error("mail_command_failed", agent=agent, exc_info=task.exception())
            asyncio.get_running_loop().call_later(WAKE_EVERY_S, self.look, [agent])  # as after a full disk
        if agent in self._again:
            self._again.discard(agent)
            if not task.cancelled():
                self.look([agent])

    async def _serve(self, agent: str) -> None:
        """Run the command of an agent until it succeeds, or there is nothing left to announce."""
        retry_s = WAKE_EVERY_S
        while True:
            while (left_s := self._limit.left_s(agent)) > 0:
                await self._pause(min(left_s, WAKE_EVERY_S))  # a pause may end early
            if self._command(agent, "") is None:
                return  # its program has a waiter of its own now, or is in a turn
            claim = await self._announcer.claim_wake(agent)
            if not claim.waiting:
                return
            try:
                is_announced = await self._announce(agent, claim)
            except BaseException:
                self._announcer.abandon(claim)
                raise
            if not is_announced:
                await self._announcer.release(claim)
                is_changed = await self._pause_for_retry(agent, retry_s)
                retry_s = WAKE_EVERY_S if is_changed else min(_RETRY_MAX_S, retry_s * 2)
                continue
            await self._announcer.settle(claim)
            if not self._announcer.is_releasing(agent):
                return

    async def _pause_for_retry(self, agent: str, seconds: float) -> bool:
        """Sleep before a failed command runs again; return True at once if its user has set another one."""
        failed = self._on_mail.get(agent)
        return await self._pause(seconds, lambda: self._on_mail.get(agent) != failed)

    async def _pause(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Sleep by the daemon's clock, because a machine that was suspended has waited too; return `is_over`."""
        until_ns = self._clock.boot_ns() + round(seconds * SECOND_NS)
        while not is_over() and (left_ns := until_ns - self._clock.boot_ns()) > 0:  # noqa: ASYNC110 - time has no event
            await asyncio.sleep(min(_LOOK_S, left_ns / SECOND_NS))
        return is_over()

    async def _announce(self, agent: str, claim: Claim) -> bool:
        """Run the command for the messages of a claim; return False if it failed."""
        command = self._command(agent, announcement(claim.waiting))
        if command is None:
            return False
        self._limit.note(agent)
        new = sum(each.messages for each in claim.waiting)
        env = {AGENT_ENV: agent, NEW_ENV: str(new), **command.env}
        ended = await run_command(command.argv, env, COMMAND_S, self._clock)
        await self._agents.store.writer.run(lambda tx: _journal(tx, agent, command, ended))
        if ended.exit != 0:
            log.warning("mail_command_failed", agent=agent, kind=command.kind, exit=ended.exit)
        return ended.exit == 0

    def _command(self, agent: str, text: str) -> Command | None:
        """Return the command for an agent that no hook of its program wakes."""
        sessions = [each for each in self._sessions.of_agent(agent) if each.process.is_running()]
        if any(each.waiter is not None for each in sessions):
            return None
        for session in sessions:
            queue = codex_queue(session, self._clock, text)
            if queue is not None:
                return queue
        command = self._on_mail.get(agent)
        return None if command is None else Command("on_mail", (_SHELL, "-c", command), {})


def codex_queue(session: Session, clock: Clock, text: str, root: Path = Path("/proc")) -> Command | None:
    """Return the command that queues a prompt for an idle Codex; None if the session is none, or is in a turn."""
    is_idle = session.event == TURN_END and not session.is_busy(clock)
    if session.program != "codex" or not session.session_id or not is_idle:
        return None
    process = root / str(session.process.pid)
    try:
        if b"exec" in (process / "cmdline").read_bytes().split(b"\0")[1:]:
            return None  # `codex exec` ends after its turn and takes nothing from the queue
        program = str((process / "exe").readlink())
        pairs = [pair.partition("=") for pair in (process / "environ").read_text(errors="replace").split("\0")]
    except OSError:
        return None
    env = {name: value for name, _, value in pairs if name in ("CODEX_HOME", "HOME")}
    return Command("codex_queue", (program, "queue", "--thread", session.session_id, "--message", text), env)


def _read_commands(db: apsw.Connection) -> dict[str, str]:
    return dict(db.execute(SQL.on_mail))


def _set_command(tx: JournalTransaction, agent: str, command: str | None) -> None:
    if command is None:
        tx.db.execute(SQL.remove_on_mail, (agent,))
    else:
        tx.db.execute(SQL.set_on_mail, (agent, command))
    tx.append("agent.on_mail_set", ref=agent, body={"is_set": command is not None})


def _journal(tx: JournalTransaction, agent: str, command: Command, ended: Ended) -> None:
    body = {"kind": command.kind, "exit": ended.exit, "ms": ended.ms}
    tx.append("agent.command_run", ref=agent, body=body | ({"timeout": True} if ended.is_timeout else {}))
