"""Commands that the daemon runs when mail arrives: a user's own for an agent, and what wakes an idle program.

One command runs at a time per agent, and at most once in 30 seconds. A command gets the number of new messages, never
their text. Every run is recorded in the journal. If a command fails, its messages count as not announced, and it runs
again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import apsw
import structlog

from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.wake.announcements import Announcer, Claim
from posthouse.daemon.wake.idle_programs import Command, Wake, claude_inbox, codex_queue, uses_inbox
from posthouse.daemon.wake.programs import announcement
from posthouse.daemon.wake.run_command import SHELL, Ended
from posthouse.daemon.wake.sessions import Session, Sessions
from posthouse.journal.append import JournalTransaction
from posthouse.model.address import AGENT_ENV
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.storage.sql_files import Statements

log = structlog.get_logger(__name__)
SQL = Statements("posthouse.daemon.wake", "commands.sql")
WAKE_EVERY_S = 30
COMMAND_MAX_CHARS = 4_096
NEW_ENV = "POSTHOUSE_NEW"
_RETRY_MAX_S = 3_600
_LOOK_S = 1.0


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
        """Note that an agent was woken."""
        self._woken_ns[agent] = self._clock.boot_ns()


class MailCommands:
    """The commands of one home."""

    def __init__(self, agents: AgentRegistry, announcer: Announcer, sessions: Sessions, limit: WakeLimit) -> None:
        self._agents = agents
        self._announcer = announcer
        self._sessions = sessions
        self._limit = limit
        self._clock = agents.store.clock
        self._on_mail = agents.store.pool.run_blocking(_read_commands)
        #: agent -> the task that checks its mail
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._is_closed = False

    @property
    def on_mail(self) -> Mapping[str, str]:
        """Agent -> the command that its user has set."""
        return self._on_mail

    def start(self) -> None:
        """Check the mail that arrived while the daemon was down."""
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
        """Read the commands again, after an agent was renamed."""
        self._on_mail = self._agents.store.pool.run_blocking(_read_commands)

    def look(self, agents: Iterable[str]) -> None:
        """Run the commands of agents that have new mail."""
        for agent in () if self._is_closed else set(agents):
            if agent in self._tasks:
                self._again.add(agent)
            elif self._wake(agent, "") is not None or self._quiet_in_s(agent) is not None:
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
            if self._wake(agent, "") is None:
                quiet_in_s = self._quiet_in_s(agent)
                if quiet_in_s is None:
                    return  # its program now has its own waiter, or is in a turn
                await self._pause(quiet_in_s, lambda: self._quiet_in_s(agent) is None)
                continue
            claim = await self._announcer.claim_wake(agent)
            if not claim.waiting:
                return
            command = self._on_mail.get(agent)
            try:
                is_announced = await self._announce(agent, claim)
            except BaseException:
                self._announcer.abandon(claim)
                raise
            if not is_announced:
                await self._announcer.release(claim)
                is_changed = await self._pause_for_retry(agent, retry_s, command)
                retry_s = WAKE_EVERY_S if is_changed else min(_RETRY_MAX_S, retry_s * 2)
                continue
            await self._announcer.settle(claim)
            if not self._announcer.is_releasing(agent):
                return

    async def _pause_for_retry(self, agent: str, seconds: float, failed: str | None) -> bool:
        """Sleep before a failed command runs again; return True at once if its user has set another one."""
        return await self._pause(seconds, lambda: self._on_mail.get(agent) != failed)

    async def _pause(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Sleep by the daemon's clock, which also counts the time that the machine was suspended; return `is_over`."""
        until_ns = self._clock.boot_ns() + round(seconds * SECOND_NS)
        while not is_over() and (left_ns := until_ns - self._clock.boot_ns()) > 0:  # noqa: ASYNC110 - time has no event
            await asyncio.sleep(min(_LOOK_S, left_ns / SECOND_NS))
        return is_over()

    async def _announce(self, agent: str, claim: Claim) -> bool:
        """Run the command for the messages of a claim; return False if it failed."""
        wake = self._wake(agent, announcement(claim.waiting))
        if wake is None:
            return False
        self._limit.note(agent)
        new = sum(each.messages for each in claim.waiting)
        ended = await wake.run({AGENT_ENV: agent, NEW_ENV: str(new)}, self._clock)
        await self._agents.store.writer.run(lambda tx: _journal(tx, agent, wake, ended))
        if ended.exit != 0:
            log.warning("mail_command_failed", agent=agent, kind=wake.kind, exit=ended.exit)
        return ended.exit == 0

    def _wake(self, agent: str, text: str) -> Wake | None:
        """Return how to wake an agent that has no waiter; None if it must not be woken."""
        sessions = self._running(agent)
        if any(each.waiter is not None for each in sessions):
            return None
        for session in sessions:
            found = codex_queue(session, self._clock, text) or claude_inbox(session, self._clock, text)
            if found is not None:
                return found
        command = self._on_mail.get(agent)
        return None if command is None else Command("on_mail", (SHELL, "-c", command), {})

    def _quiet_in_s(self, agent: str) -> float | None:
        """Return when a program may be woken through its inbox; None if it has none, or has a waiter."""
        sessions = self._running(agent)
        if any(each.waiter is not None for each in sessions):
            return None
        return min((each.quiet_in_s(self._clock) for each in sessions if uses_inbox(each)), default=None)

    def _running(self, agent: str) -> list[Session]:
        return [each for each in self._sessions.of_agent(agent) if each.process.is_running()]


def _read_commands(db: apsw.Connection) -> dict[str, str]:
    return dict(db.execute(SQL.on_mail))


def _set_command(tx: JournalTransaction, agent: str, command: str | None) -> None:
    if command is None:
        tx.db.execute(SQL.remove_on_mail, (agent,))
    else:
        tx.db.execute(SQL.set_on_mail, (agent, command))
    tx.append("agent.on_mail_set", ref=agent, body={"is_set": command is not None})


def _journal(tx: JournalTransaction, agent: str, wake: Wake, ended: Ended) -> None:
    body = {"kind": wake.kind, "exit": ended.exit, "ms": ended.ms}
    tx.append("agent.command_run", ref=agent, body=body | ({"timeout": True} if ended.is_timeout else {}))
