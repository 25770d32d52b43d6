"""Waking an idle program that no waiter wakes: `codex queue`, and the inbox socket of a Claude Code session.

Claude Code listens on a socket for messages of other sessions and starts a turn for one when it is idle. posthouse uses
it only for a session that has lost its waiter, for example because its user interrupted a turn: the model reads such a
message as a request of another session, nothing acknowledges it, and a session that bypasses permissions holds it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from posthouse.daemon.wake.programs import TURN_END
from posthouse.daemon.wake.run_command import Ended, run_command
from posthouse.daemon.wake.sessions import InboxSocket, Session
from posthouse.model.clock import Clock
from posthouse.model.limits import MILLISECOND_NS

COMMAND_S = 60.0
_SOCKET_S = 5.0
_BYPASS = "bypassPermissions"


class Command(NamedTuple):
    """A program to start."""

    #: on_mail or codex_queue
    kind: str
    argv: Sequence[str]
    env: Mapping[str, str]

    async def run(self, env: Mapping[str, str], clock: Clock) -> Ended:
        """Run the program to its end."""
        return await run_command(self.argv, {**env, **self.env}, COMMAND_S, clock)


class InboxMessage(NamedTuple):
    """A message to the inbox socket of a session."""

    kind: str
    inbox: InboxSocket
    text: str

    async def run(self, _env: Mapping[str, str], clock: Clock) -> Ended:
        """Write the message; the exit code is 0 if the session took it."""
        started_ns = clock.boot_ns()
        is_written = await _write(self.inbox, self.text)
        return Ended(0 if is_written else 1, (clock.boot_ns() - started_ns) // MILLISECOND_NS, False)


Wake = Command | InboxMessage


def codex_queue(session: Session, clock: Clock, text: str, root: Path = Path("/proc")) -> Command | None:
    """Return the command that queues a prompt for an idle Codex; None if it is no Codex session, or is in a turn."""
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


def uses_inbox(session: Session) -> bool:
    """Return True if a session without a waiter may be woken through its inbox socket."""
    return session.inbox is not None and session.waiter is None and session.permission_mode != _BYPASS


def claude_inbox(session: Session, clock: Clock, text: str) -> InboxMessage | None:
    """Return the message that wakes a Claude Code session; None if a hook ran just now or its waiter wakes it."""
    if session.inbox is None or not uses_inbox(session) or session.quiet_in_s(clock) > 0:
        return None
    return InboxMessage("claude_inbox", session.inbox, text)


async def _write(inbox: InboxSocket, text: str) -> bool:
    lines: list[dict[str, object]] = [{"type": "auth", "token": inbox.token}] if inbox.token else []
    lines.append({"type": "user", "message": {"role": "user", "content": text}})
    try:
        async with asyncio.timeout(_SOCKET_S):
            _reader, writer = await asyncio.open_unix_connection(inbox.path)
            try:
                writer.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
                await writer.drain()
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
    return True
