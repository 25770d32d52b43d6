"""Answers the hooks of coding agents: gives each process its agent, announces mail, and holds the waiters.

One waiter waits per process of a program; a newer one ends the older. A waiter wakes its program for mail that no hook
has announced, not while the program is in a turn or the agent is paused, and at most once in 30 seconds per agent.
Hooks of subagents get no announcements: the mail belongs to the main agent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import structlog

from posthouse.daemon.agents.pauses import HOOK, Pauses
from posthouse.daemon.agents.processes import ProcessRef
from posthouse.daemon.agents.registry import AgentFields, AgentRegistry
from posthouse.daemon.wake import programs
from posthouse.daemon.wake.announcements import NO_CLAIM, Announcer, Claim
from posthouse.daemon.wake.mail_commands import MailCommands, WakeLimit
from posthouse.daemon.wake.sessions import Session, Sessions
from posthouse.daemon.wake.transcripts import Transcript
from posthouse.daemon.wake.usage_limits import LIMIT_KINDS, resume_at_ns
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.clock import Clock

log = structlog.get_logger(__name__)
#: between checks of the program's process while a waiter waits
WATCH_S = 1.0
_TURN_HAS_ENDED = "Stop"  # the event of Claude Code at which its waiter starts after a turn; a failed turn has another
#: for a program to connect again, after a restart of its MCP server
RECONNECT_S = 5.0


class Waiting(Protocol):
    """The part of the server that a waiter uses."""

    @property
    def is_stopping(self) -> bool:
        """True once the daemon stops."""
        ...

    async def wait_for(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set, the time has passed, or the daemon stops."""
        ...


class Announced(NamedTuple):
    """The answer to a hook, and the claim of the messages that it announces: the sender of the answer ends it."""

    answer: programs.HookAnswer
    claim: Claim = NO_CLAIM


class Waker:
    """Wakes the agents of one home."""

    def __init__(
        self,
        agents: AgentRegistry,
        pauses: Pauses,
        announcer: Announcer,
        address_of: Callable[[str], str],
        clock: Clock,
    ) -> None:
        self._agents = agents
        self._pauses = pauses
        self._announcer = announcer
        self._address_of = address_of
        self._clock = clock
        self._limit = WakeLimit(clock, pauses.held_s)
        self._connections: Counter[ProcessRef | None] = Counter()
        self.sessions = Sessions()
        #: messages of an agent report the usage in the transcript of its session
        self.follows_transcripts = False
        self.commands = MailCommands(agents, announcer, self.sessions, self._limit)
        agents.on_change += [self.commands.reload, self._follow_names]
        pauses.on_change.append(self.on_mail)

    async def session_of(self, program: str, name: str, process: ProcessRef, given: programs.HookInput) -> Session:
        """Return the session of a process; the first hook gives the process its agent."""
        found = self._known_session(process)
        if found is not None:
            return found
        bound = [agent.name for agent in self._agents.agents.values() if agent.process == process]
        fields = AgentFields(program=program, project=given.cwd)
        registered = await self._agents.register(
            bound[0] if bound else name or programs.PROGRAMS[program], fields, process
        )
        found = self._known_session(process)  # another hook of the process may have been faster
        if found is None:
            found = Session(process, program, registered.agent.name)
            self.sessions.add(found)
        return found

    def _known_session(self, process: ProcessRef) -> Session | None:
        found = self.sessions.find(process)
        return None if found is None or self._agents.agents[found.agent].is_retired else found

    def _follow_names(self) -> None:
        """Update the names of sessions from the registry, after an agent was renamed."""
        names = {agent.process: agent.name for agent in self._agents.agents.values() if not agent.is_retired}
        for session in self.sessions:
            session.agent = names.get(session.process, session.agent)

    async def on_event(self, session: Session, event: str, given: programs.HookInput) -> Announced:
        """Return the answer to a hook that does not wait."""
        session.note(event, given.session, self._clock, is_turn=event in (programs.PROMPT, programs.TOOL))
        if self.follows_transcripts:
            session.follow_transcript(given.transcript_path)
        agent = session.agent
        if event in (programs.TOOL, programs.TURN_END):
            await self._on_progress(agent)
        if event == programs.SESSION_START:
            claim = await self._announcer.claim_all(agent)
            text = programs.introduction(self._address_of(agent), claim.waiting)
            return Announced(programs.context_answer(session.program, given, text, agent), claim)
        if event in (programs.PROMPT, programs.TOOL):
            claim = await self._announcer.claim_new(agent)
            return Announced(
                programs.context_answer(session.program, given, programs.announcement(claim.waiting)), claim
            )
        if event == programs.TURN_END:
            return await self._on_turn_end(session)
        if event == programs.TURN_FAILED:
            await self._on_turn_failed(session, given)
        if event == programs.SESSION_END:
            self.sessions.end(session.process)
        return Announced(programs.HookAnswer())

    def transcript_of(self, agent: str) -> Transcript | None:
        """Return the transcript of an agent's session; None if its program writes none, or it has several sessions."""
        found = [session.transcript for session in self.sessions.of_agent(agent) if session.transcript is not None]
        return found[0] if len(found) == 1 else None

    async def wait(self, session: Session, given: programs.HookInput, server: Waiting) -> Announced:
        """Wait until mail wakes the program.

        The answer is empty if a newer waiter replaces this one, the program is gone, or the daemon stops.
        """
        session.note(programs.WAIT, given.session, self._clock, is_turn=False)
        if given.hook_event_name == _TURN_HAS_ENDED:
            await self._on_progress(session.agent)
        waiter = session.begin_wait()
        try:
            while not (waiter.is_ended or server.is_stopping) and session.process.is_running():
                waiter.wakeup.clear()
                claim = NO_CLAIM if session.is_busy(self._clock) else await self._claim_wake(session.agent)
                if claim.waiting:
                    return Announced(programs.wake_answer(programs.announcement(claim.waiting)), claim)
                await server.wait_for(waiter.wakeup, WATCH_S)
        finally:
            session.end_wait(waiter)
        return Announced(programs.HookAnswer())

    async def on_answered(self, session: Session, claim: Claim, *, is_heard: bool) -> None:
        """End the claim of an answer: settle it if the hook has the answer, else release its messages."""
        if is_heard:
            await self._announcer.settle(claim)
        elif claim.waiting:
            await self._announcer.release(claim)
            self.on_mail([session.agent])

    def on_mail(self, agents: Iterable[str]) -> None:
        """Notify the waiters and commands of these agents of new mail."""
        named = {agent for agent in agents if agent != DEFAULT_INBOX}
        for agent in named:
            for session in self.sessions.of_agent(agent):
                if session.waiter is not None:
                    session.waiter.wakeup.set()
        self.commands.look(named)

    async def close(self) -> None:
        """Stop every command."""
        await self.commands.close()

    @contextmanager
    def connected(self, process: ProcessRef | None) -> Iterator[None]:
        """Note an MCP connection of a program; its waiter ends soon after its last connection."""
        self._connections[process] += 1
        try:
            yield
        finally:
            self._connections[process] -= 1
            if process is not None and not self._connections[process]:
                asyncio.get_running_loop().call_later(RECONNECT_S, self._end_unconnected, process)

    def _end_unconnected(self, process: ProcessRef) -> None:
        if not self._connections[process]:
            del self._connections[process]
            self.sessions.end(process)

    async def _on_turn_end(self, session: Session) -> Announced:
        if session.program != "cursor":
            self.commands.look([session.agent])
            return Announced(programs.HookAnswer())
        claim = await self._claim_wake(session.agent)
        return Announced(programs.follow_up_answer(session.program, programs.announcement(claim.waiting)), claim)

    async def _on_turn_failed(self, session: Session, given: programs.HookInput) -> None:
        """Pause an agent whose account has hit a limit, until the time that its program names."""
        pause = self._pauses.find(session.agent)
        if str(given.error) not in LIMIT_KINDS or (pause is not None and pause.set_by != HOOK):
            return  # a pause that a person or the agent has set stays
        message = f"{given.last_assistant_message or ''}\n{given.error_details or ''}"
        until_ns = resume_at_ns(message, self._clock.wall_ns())
        await self._pauses.pause([session.agent], until_ns, f"usage limit of {session.program}", HOOK)
        log.info("agent_paused", agent=session.agent, error=str(given.error))

    async def _on_progress(self, agent: str) -> None:
        """End the pause of a usage limit once the model has answered again."""
        pause = self._pauses.find(agent)
        if pause is not None and pause.set_by == HOOK:
            await self._pauses.resume([agent])

    async def _claim_wake(self, agent: str) -> Claim:
        """Return the messages that may wake an agent now; none if it has no new mail or was woken just now."""
        if self._limit.left_s(agent) > 0:
            return NO_CLAIM
        claim = await self._announcer.claim_wake(agent)
        if claim.waiting:
            self._limit.note(agent)
            log.info("agent_woken", agent=agent)
        return claim
