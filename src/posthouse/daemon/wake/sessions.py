"""Sessions of coding agents on this host, as their hooks report them: one per process of a program.

A hook runs as a child of its program, so its parent names the session; ids of sessions change with /clear and resume,
the process does not. A session without further hooks stays until its process has ended. Everything is in memory: after
a restart of the daemon the next hook brings a session back, and the registry knows the name of its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from posthouse.daemon.agents.processes import ProcessRef, find_process
from posthouse.daemon.wake.transcripts import PROGRAM, Transcript
from posthouse.model.clock import Clock, format_utc
from posthouse.model.limits import SECOND_NS

BUSY_S = 60  # after the last hook of a turn: an interrupted turn has no end that a hook reports
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "env"})
_ANCESTORS_MAX = 8


class InboxSocket(NamedTuple):
    """The socket on which a Claude Code session takes messages of other sessions; its child processes know it."""

    path: str
    #: proves that the writer got the socket from the session
    token: str


class Waiter:
    """One hook that waits for mail."""

    def __init__(self) -> None:
        self.wakeup = asyncio.Event()
        self.is_ended = False

    def end(self) -> None:
        """End the waiter without waking its program."""
        self.is_ended = True
        self.wakeup.set()


class Session:
    """One process of a coding agent."""

    def __init__(self, process: ProcessRef, program: str, agent: str) -> None:
        self.process = process
        self.program = program
        self.agent = agent
        #: the program's own id of the session, as of its last hook
        self.session_id = ""
        self.event = ""
        self.at_ns = 0
        self.waiter: Waiter | None = None
        self.inbox: InboxSocket | None = None
        self.permission_mode = ""
        self.transcript: Transcript | None = None
        self._busy_until_ns = 0
        self._quiet_at_ns = 0

    def note(self, event: str, session_id: str, clock: Clock, *, is_turn: bool) -> None:
        """Note a hook; `is_turn` says whether the program is in a turn now."""
        self.event, self.at_ns = event, clock.wall_ns()
        self.session_id = session_id or self.session_id
        self._quiet_at_ns = clock.boot_ns() + BUSY_S * SECOND_NS
        self._busy_until_ns = self._quiet_at_ns if is_turn else 0

    def follow_transcript(self, path: object) -> None:
        """Count the usage in the transcript that a hook names; /clear and a resumed session bring another one."""
        is_new = self.transcript is None or self.transcript.path != path
        if self.program == PROGRAM and isinstance(path, str) and path and is_new:
            self.transcript = Transcript(path)

    def quiet_in_s(self, clock: Clock) -> float:
        """Return the seconds after which, without another hook, the turn counts as over; zero if it does now."""
        return max(0.0, (self._quiet_at_ns - clock.boot_ns()) / SECOND_NS)

    def is_busy(self, clock: Clock) -> bool:
        """Return True in a turn: the program's own hooks announce mail then."""
        return clock.boot_ns() < self._busy_until_ns

    def begin_wait(self) -> Waiter:
        """Return a new waiter; it ends the previous one."""
        if self.waiter is not None:
            self.waiter.end()
        self.waiter = Waiter()
        return self.waiter

    def end_wait(self, waiter: Waiter) -> None:
        """Forget a waiter, unless another one has taken its place."""
        if self.waiter is waiter:
            self.waiter = None

    def to_api(self) -> dict[str, Any]:
        """Return the session as `connect --status` shows it."""
        return {
            "agent": self.agent,
            "program": self.program,
            "pid": self.process.pid,
            "session_id": self.session_id,
            "event": self.event,
            "at": format_utc(self.at_ns),
            "is_waiting": self.waiter is not None,
            "has_inbox": self.inbox is not None,
        }


class Sessions:
    """The sessions of one home."""

    def __init__(self) -> None:
        self._by_process: dict[ProcessRef, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._by_process.values()))

    def find(self, process: ProcessRef) -> Session | None:
        """Return the session of a process."""
        return self._by_process.get(process)

    def add(self, session: Session) -> None:
        """Add a session, and drop those whose process has ended."""
        self._by_process = {ref: each for ref, each in self._by_process.items() if ref.is_running()}
        self._by_process[session.process] = session

    def of_agent(self, agent: str) -> list[Session]:
        """Return the sessions of an agent."""
        return [each for each in self._by_process.values() if each.agent == agent]

    def of_program(self, program: str) -> list[Session]:
        """Return the sessions of a program that still run."""
        return [each for each in self._by_process.values() if each.program == program and each.process.is_running()]

    def end(self, process: ProcessRef) -> None:
        """End the session of a process, and its waiter."""
        session = self._by_process.pop(process, None)
        if session is not None and session.waiter is not None:
            session.waiter.end()


def find_program(pid: int, root: Path = Path("/proc")) -> ProcessRef | None:
    """Return the process of the program that started a hook: the nearest ancestor that is not a shell."""
    for _ in range(_ANCESTORS_MAX):
        try:
            name, parent = _name_and_parent(root / str(pid) / "stat")
        except (OSError, ValueError):
            break
        if name not in _SHELLS or parent <= 1:
            break
        pid = parent
    return find_process(pid, root)


def _name_and_parent(stat: Path) -> tuple[str, int]:
    text = stat.read_text(encoding="utf-8", errors="replace")
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], int(rest.split()[1])
