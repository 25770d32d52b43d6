"""One stream connection: splits frames into commands, runs them in order, and owns its subscriptions and sessions.

A client cannot make the connection hold more than its bounds: the next frame is read only while few events are
unanswered and few answers are unsent, and a client that keeps sending refused frames is closed. AUTH must arrive soon;
until then, and for keys that are in no mesh, frames have to be small. The verbs are in posthouse.relay.stream.commands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
from aiohttp import WSCloseCode

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import CONFIRMATION, decode_event
from posthouse.model.rate import Rate, full_bucket, take
from posthouse.relay.accept.submission import Answered
from posthouse.relay.context import RelayContext, features_of
from posthouse.relay.locks.watches import LockWatch
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.sessions import CODE_CONFIRM_TIMEOUT, REPLACED, SessionEnd
from posthouse.relay.wire.accept_results import QUEUE_FULL, Accepted, Answer, Declined
from posthouse.relay.wire.frames import Command, WriteBuffer, command_text, expect, list_text, read_commands, text_frame
from posthouse.relay.wire.websocket import INTERNAL_ERROR, POLICY_VIOLATION, Frame, WebSocket, WebSocketConnection


class Verb(NamedTuple):
    """A command that clients may send."""

    run: Callable[[Connection, Sequence[bytes]], None]
    #: True: the operation has its own rate limit, so the connection's command rate does not apply
    has_own_rate: bool = False


class _KindAndId(msgspec.Struct):
    kind: int
    id: str


_decode_kind = msgspec.json.Decoder(_KindAndId).decode


class OpenSubscription(Protocol):
    """The part of a subscription that its connection uses."""

    #: entries that its filters make in the live index, at most
    filter_values: int

    def close(self) -> None:
        """Stop sending."""
        ...

    def check_right(self, mesh: str) -> None:
        """End if it asks for a mesh that its node may no longer read."""
        ...


class Connection(WebSocketConnection):
    """The WebSocket of one client."""

    __slots__ = (
        "_bucket",
        "_counted",
        "_faults",
        "_is_admitted",
        "_login_deadline",
        "_rate",
        "_read_lock",
        "_reads",
        "_submitter",
        "_unwatch_rights",
        "_verbs",
        "address",
        "context",
        "filter_values",
        "lock_watches",
        "name",
        "node",
        "sessions",
        "stored_events_lock",
        "subscriptions",
    )

    #: between commands of one frame
    separator = b","

    def __init__(
        self,
        context: RelayContext,
        socket: WebSocket,
        write_buffer: WriteBuffer,
        name: str,
        verbs: Mapping[str, Verb],
        address: str | None,
    ) -> None:
        limits = context.limits
        super().__init__(socket, write_buffer, limits.ping_s, limits.pong_s)
        self.context = context
        #: holder of this connection's challenge; unique in this process
        self.name = name
        #: the address that logins are charged to, if there is one
        self.address = address
        #: set by AUTH
        self.node: str | None = None
        self.subscriptions: dict[str, OpenSubscription] = {}
        #: filter values of all subscriptions
        self.filter_values = 0
        #: open reader sessions by mesh
        self.sessions: dict[str, ReaderSession] = {}
        #: by mesh and resource
        self.lock_watches: dict[tuple[str, str], LockWatch] = {}
        #: held by the subscription that sends stored events: they share one socket anyway
        self.stored_events_lock = asyncio.Lock()
        #: held by the COUNT or LOCK list that runs
        self._read_lock = asyncio.Lock()
        self._reads = 0
        self._verbs = verbs
        self._counted = context.meters.counter("posthouse_relay_commands_total")
        self._submitter = context.engine.open_submitter(self._answer, address)
        self._unwatch_rights = context.engine.meshes.watch_rights(self._check_rights)
        self._rate = Rate(limits.commands_per_s, limits.commands_burst)
        self._bucket = full_bucket(self._rate, context.clock.boot_ns())
        self._faults = 0
        self._is_admitted = False
        socket.limit_stranger(limits.stranger_frame_bytes, partial(self._refuse_size, limits.stranger_frame_bytes))
        loop = asyncio.get_running_loop()
        self._login_deadline: asyncio.TimerHandle | None = loop.call_later(limits.login_s, self._expire_login)

    def log_in(self, node: str) -> None:
        """Act for a node from now on, or raise connections_exhausted."""
        refusal = self._admit(node)
        if refusal is not None:
            raise refusal
        self.node = node
        if self.address is None:
            self._submitter.payer = node
        self._end_login_deadline()

    def _admit(self, node: str) -> PosthouseError | None:
        """Lift the limits for strangers if the node is a member of a mesh: a key alone proves nothing."""
        if self._is_admitted or not self.context.engine.meshes.has_member(node):
            return None
        refusal = self.accept_member(node)
        if refusal is None:
            self._is_admitted = True
            self._submitter.payer = node
        return refusal

    def greet(self) -> None:
        """Send HELLO with this connection's challenge."""
        context = self.context
        challenge = context.stream_challenges.issue(self.name)
        self.send("HELLO", {"relay": context.relay, "challenge": challenge.text, "features": features_of(context)})

    def send(self, *parts: Any) -> None:
        """Send one command."""
        self.write_buffer.write(text_frame(command_text(*parts)))

    def notice(self, failure: PosthouseError) -> None:
        """Report an error of a frame that has no id to answer to."""
        self.send("NOTICE", failure.code, str(failure))

    def deliver(self, text: bytes, count: int) -> None:
        """Send one command, or several that are joined by the separator."""
        self.write_buffer.write(text_frame(text if count == 1 else b"[%b]" % text))

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded frame that other connections share."""
        self.write_buffer.write(frame)

    def end(self, code: int, reason: str) -> None:
        if self.ending is None:
            self.context.meters.count("posthouse_relay_streams_closed_total", reason)
        super().end(code, reason)

    def drop(self, reason: str) -> None:
        if self.ending is None:
            self.context.meters.count("posthouse_relay_streams_closed_total", reason)
        super().drop(reason)

    @property
    def identity(self) -> str | None:
        return self.node

    def refuse_size(self) -> None:
        self._refuse_size(self.context.limits.frame_bytes)

    def take_frame(self, frame: Frame) -> None:
        """Run the commands of one frame, in order."""
        if not self._is_admitted:
            self._socket.note_handled()
        if self.ending is not None:
            self._take_late_frame(frame.data)
        elif not frame.is_text:
            self._fault(error("frame_not_text"))
        else:
            self._run_commands(frame.data)

    def _run_commands(self, data: bytes) -> None:
        try:
            commands = read_commands(data, self.context.limits.commands_per_frame)
        except PosthouseError as failure:
            self._fault(failure)
            return
        events: list[bytes] = []
        for command in commands:
            if self.ending is not None:
                break
            if command.verb == "EVENT" and len(command.arguments) == 1:
                events.append(command.arguments[0])
                continue
            if events:
                self.submit(events)
                events = []
            self._run_command(command)
        if events:
            self.submit(events)

    def submit(self, events: Sequence[bytes]) -> None:
        """Submit events, at least one, to the accept path, after those submitted before."""
        self._counted["EVENT",] += len(events)
        try:
            self._submitter.submit(events)
        except PosthouseError as failure:
            ids = [_claimed_id(event) for event in events]
            self._answer([Answered(event_id, Declined(event_id, failure)) for event_id in ids])
            return
        if self._submitter.in_flight >= self.context.limits.events_in_flight:
            self.hold_back(True)

    def confirm(self, arguments: Sequence[bytes]) -> None:
        """CONFIRM: submit a confirmation to the accept path; it is an event too."""
        expect(arguments, "CONFIRM", '["CONFIRM", event]', 1, 1)
        try:
            given = _decode_kind(arguments[0])
        except (msgspec.DecodeError, ValueError, RecursionError) as fault:
            raise error("confirmation_malformed", reason="it is not an event") from fault
        if given.kind != CONFIRMATION:
            refusal = error("confirmation_malformed", reason=f"its kind is {given.kind}, not {CONFIRMATION}")
            self.send("OK", given.id, False, refusal.problem())
            return
        self.submit([arguments[0]])

    def start_session(self, session: ReaderSession) -> None:
        self.start(self._run_session(session))

    async def _run_session(self, session: ReaderSession) -> None:
        try:
            await session.run()
        except PosthouseError as failure:  # the store cannot be read now: the client reconnects and tries again
            self.notice(failure)
            self.end(INTERNAL_ERROR, failure.code)

    def start_read(
        self, read: Callable[[], Coroutine[Any, Any, None]], refuse: Callable[[PosthouseError], None]
    ) -> None:
        """Run a read that has its own answer, after earlier reads, once the peer has taken their answers.

        Raises reads_exhausted when too many wait.
        """
        limit = self.context.limits.reads_per_connection
        if self._reads >= limit:
            raise error("reads_exhausted", limit=limit)
        self._reads += 1
        self.context.reads += 1
        self.start(self._run_read(read, refuse))

    async def _run_read(
        self, read: Callable[[], Coroutine[Any, Any, None]], refuse: Callable[[PosthouseError], None]
    ) -> None:
        try:
            async with self._read_lock:
                await self.write_buffer.drain()
                await read()
        except PosthouseError as failure:
            refuse(failure)
        finally:
            self._reads -= 1
            self.context.reads -= 1

    def forget(self, sub: str) -> None:
        """Remove a subscription that has been closed."""
        self.filter_values -= self.subscriptions.pop(sub).filter_values

    def _check_rights(self, mesh: str) -> None:
        if self.node is not None:
            retired = self.context.engine.meshes.key_error(self.node)
            if retired is not None:
                self._end_retired(retired)
                return
            self._admit(self.node)  # it may have joined its first mesh; without room it stays a stranger
        for subscription in list(self.subscriptions.values()):
            subscription.check_right(mesh)

    def _end_retired(self, failure: PosthouseError) -> None:
        if self.ending is None:
            self.notice(failure)
            self.end(POLICY_VIOLATION, failure.code)

    def end_watch(self, key: tuple[str, str]) -> None:
        """End the watch of a lock, if there is one."""
        watch = self.lock_watches.pop(key, None)
        if watch is not None:
            self.context.engine.locks.end_watch(watch)

    async def close(self) -> None:
        self._unwatch_rights()
        self._end_login_deadline()
        for key in list(self.lock_watches):
            self.end_watch(key)
        for subscription in list(self.subscriptions.values()):
            subscription.close()
        for session in self.sessions.values():
            self.context.engine.sessions.close(session, self._session_end())
        self._submitter.close()
        await super().close()

    def _refuse_size(self, limit: int) -> None:
        if self.ending is None:
            hint = None if self.node is not None else "Send AUTH first: frames may be larger then."
            self.notice(error("frame_too_large", limit=limit, hint=hint))
            self.end(WSCloseCode.MESSAGE_TOO_BIG, "frame_too_large")

    def _expire_login(self) -> None:
        if self.ending is None:
            self.notice(error("login_too_slow", seconds=self.context.limits.login_s))
            self.end(POLICY_VIOLATION, "login_too_slow")

    def _end_login_deadline(self) -> None:
        if self._login_deadline is not None:
            self._login_deadline.cancel()
            self._login_deadline = None

    def _take_late_frame(self, data: bytes) -> None:
        """Accept confirmations that crossed the close frame of a session that a newer one replaced."""
        if self.ending is None or self.ending[1] != REPLACED:
            return
        with contextlib.suppress(PosthouseError):  # no answer can follow the close frame
            for command in read_commands(data, self.context.limits.commands_per_frame):
                if command.verb == "CONFIRM" and len(command.arguments) == 1:
                    self.submit([command.arguments[0]])

    def _session_end(self) -> SessionEnd:
        if self.context.is_stopping:
            return SessionEnd.HARMLESS
        if self.ending is not None and self.ending[0] == CODE_CONFIRM_TIMEOUT:
            return SessionEnd.TIMEOUT
        return SessionEnd.LOST

    def _run_command(self, command: Command) -> None:
        verb = self._verbs.get(command.verb)
        self._counted[command.verb if verb else "unknown",] += 1
        try:
            if verb is None or not verb.has_own_rate:
                self.spend_rate()
            if verb is None:
                raise error("verb_unknown", verb=command.verb[:40])
            verb.run(self, command.arguments)
        except PosthouseError as failure:
            self._fault(failure)
        else:
            self._faults = 0

    def spend_rate(self) -> None:
        """Take one command from the connection's rate, or raise commands_too_fast."""
        self._bucket, wait_ns = take(self._bucket, self._rate, self.context.clock.boot_ns())
        if wait_ns:
            raise error("commands_too_fast", per_s=self._rate.per_s)

    def _answer(self, answered: Sequence[Answered]) -> None:
        if self.is_held_back and self._submitter.in_flight < self.context.limits.events_in_flight:
            self.hold_back(False)
        if self.ending is None:  # nothing follows a close frame
            refused = [each.answer for each in answered if isinstance(each.answer, Declined)]
            texts = [_ok_text(*each) for each in answered]
            if refused:
                texts += [text for each in refused if (text := queue_full_text(each)) is not None]
            self.write_buffer.write(text_frame(list_text(texts)))

    def _fault(self, failure: PosthouseError) -> None:
        self._faults += 1
        self.notice(failure)
        if self._faults >= self.context.limits.faults_per_connection:
            self.end(POLICY_VIOLATION, failure.code)


def queue_full_text(answer: Answer) -> bytes | None:
    """Return the QUEUE_FULL command that follows an answer, or None."""
    if not isinstance(answer, Declined) or answer.error.code != QUEUE_FULL:
        return None
    return command_text("QUEUE_FULL", answer.id, answer.error.fields["recipient"], str(answer.error))


def _claimed_id(event: bytes) -> str | None:
    try:
        return decode_event(event).id
    except PosthouseError:
        return None


def _ok_text(event_id: str | None, answer: Answer) -> bytes:
    if isinstance(answer, Accepted):
        return command_text("OK", event_id or answer.id, True, answer)
    return command_text("OK", event_id, False, answer.error.problem())
