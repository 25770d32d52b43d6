"""One stream connection: reads frames, runs their commands, and owns what belongs to the connection.

Commands run in the order sent. Nothing a client sends makes the connection hold more than its bounds: the next
frame is read only while few events are unanswered and few answers unsent, and a client that keeps sending refused
frames is closed. What a verb does is in posthouse.relay.stream.commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import decode_event
from posthouse.model.rate import Rate, full_bucket, take
from posthouse.relay.context import Edge, features_of
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.sessions import CODE_CONFIRM_TIMEOUT, REPLACED, SessionEnd
from posthouse.relay.metrics import count_answers
from posthouse.relay.wire.accept_results import QUEUE_FULL, Accepted, Answer, Declined
from posthouse.relay.wire.frames import Command, close_frame, command_text, list_text, read_commands
from posthouse.relay.wire.websocket import HELD_BACK_BYTES, WriteBuffer


def queue_full_text(answer: Answer) -> bytes | None:
    """Return the QUEUE_FULL command that goes with an answer, or None."""
    if not isinstance(answer, Declined) or answer.error.code != QUEUE_FULL:
        return None
    return command_text("QUEUE_FULL", answer.id, answer.error.fields["recipient"], str(answer.error))


log = structlog.get_logger(__name__)


class Verb(NamedTuple):
    """A command that clients may send."""

    run: Callable[[Connection, Sequence[bytes]], None]
    #: True: the operation spends a rate limit of its own, so the connection's command rate does not apply
    has_own_rate: bool = False


class OpenSubscription(Protocol):
    """A subscription, as far as its connection needs it."""

    sub: str
    #: entries that its filters make in the live index, at most
    filter_values: int

    def close(self) -> None:
        """Stop sending."""
        ...


class Connection:
    """The state of one WebSocket."""

    def __init__(self, edge: Edge, outbox: WriteBuffer, name: str, verbs: Mapping[str, Verb]) -> None:
        self.edge = edge
        self.outbox = outbox
        #: names this connection to the challenges; unique in this process
        self.name = name
        self._verbs = verbs
        self.node: str | None = None
        self.subscriptions: dict[str, OpenSubscription] = {}
        #: open mailboxes by mesh
        self.mailboxes: dict[str, ReaderSession] = {}
        self._pongs: dict[bytes, Callable[[], None]] = {}
        self._pings = itertools.count(1)
        self.filter_values = 0
        #: stored events of one subscription after the other: they share one socket anyway
        self.stored_turn = asyncio.Lock()
        #: why the relay ends this connection: a close code and a reason
        self.ending: tuple[int, str] | None = None
        #: set when everything of this connection has been released
        self.ended = asyncio.Event()
        #: loop times of the last sign of life, and of the ping that waits for one
        self.heard_at = asyncio.get_running_loop().time()
        self.pinged_at: float | None = None
        #: how many bytes the peer had taken when it was pinged
        self.sent_at_ping = 0
        self._lane = edge.core.open_submitter(lambda answers: self._answer(self._lane.submitted, answers))
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rate = Rate(edge.limits.commands_per_s, edge.limits.commands_burst)
        self._bucket = full_bucket(self._rate, edge.clock.boot_ns())
        self._faults = 0

    def greet(self) -> None:
        """Send HELLO: who this relay is, and the challenge that AUTH has to answer."""
        challenge = self.edge.challenges.issue(self.name)
        self.send("HELLO", {"relay": self.edge.relay, "challenge": challenge.text, "features": features_of(self.edge)})

    def send(self, *parts: Any) -> None:
        """Send one command."""
        self.outbox.send(command_text(*parts))

    def notice(self, failure: PosthouseError) -> None:
        """Tell the client what was wrong with a frame that names nothing to answer to."""
        self.send("NOTICE", failure.code, str(failure))

    def end(self, code: int, reason: str) -> None:
        """Close this connection with a code and a reason; what was written before is sent first.

        The peer has a moment to read them and to answer; then it is dropped.
        """
        if self.ending is None:
            self.ending = (code, reason)
            self.edge.meters.count("posthouse_relay_streams_closed_total", reason)
            self.outbox.write(close_frame(code, reason))
            self.outbox.abort_soon()

    def refuse_binary(self) -> None:
        """Answer a binary frame."""
        self._fault(error("frame_not_text"))

    def refuse_size(self) -> None:
        """Answer a frame that is too large; the library closes the connection for it next."""
        self.notice(error("frame_too_large", limit=self.edge.limits.frame_bytes))
        self.end(1009, "frame_too_large")

    def take_frame(self, data: bytes) -> None:
        """Run the commands of one text frame, in order."""
        try:
            commands = read_commands(data, self.edge.limits.commands_per_frame)
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
            self.submit(events)
            events = []
            self._run(command)
        self.submit(events)

    def take_late_frame(self, data: bytes) -> None:
        """Take the confirmations of a frame that crossed the close frame of a mailbox that was replaced."""
        if self.ending is None or self.ending[1] != REPLACED:
            return
        with contextlib.suppress(PosthouseError):  # nobody is left to be told
            for command in read_commands(data, self.edge.limits.commands_per_frame):
                if command.verb == "CONFIRM" and len(command.arguments) == 1:
                    self.submit([command.arguments[0]])

    @property
    def is_held_back(self) -> bool:
        """Whether the next frame is not read because too many events are unanswered."""
        return not self._has_room.is_set()

    async def wait_for_room(self) -> None:
        """Wait until few events are unanswered and few answers are unsent: only then is the next frame read."""
        await self._has_room.wait()
        if self.outbox.unsent_bytes > HELD_BACK_BYTES:
            await self.outbox.drain()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the reading of frames; it ends with the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def expect_pong(self, on_pong: Callable[[], None]) -> bytes:
        """Return the payload of a ping whose answer is waited for."""
        payload = b"%d" % next(self._pings)
        self._pongs[payload] = on_pong
        return payload

    def take_pong(self, payload: bytes) -> None:
        """Tell who waits for the answer to a ping that it came."""
        on_pong = self._pongs.pop(bytes(payload), None)
        if on_pong is not None:
            on_pong()

    def forget(self, subscription: OpenSubscription) -> None:
        """Remove a subscription that has been closed."""
        if self.subscriptions.get(subscription.sub) is subscription:
            del self.subscriptions[subscription.sub]
            self.filter_values -= subscription.filter_values

    async def close(self) -> None:
        """Release everything: live subscriptions, running work, the way into the core."""
        for subscription in list(self.subscriptions.values()):
            subscription.close()
        for mailbox in self.mailboxes.values():
            self.edge.core.sessions.close(mailbox, self._mailbox_end())
        self._lane.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ended.set()

    def _mailbox_end(self) -> SessionEnd:
        if self.edge.is_stopping:
            return SessionEnd.HARMLESS
        return (
            SessionEnd.TIMEOUT
            if self.ending is not None and self.ending[0] == CODE_CONFIRM_TIMEOUT
            else SessionEnd.LOST
        )

    def _run(self, command: Command) -> None:
        verb = self._verbs.get(command.verb)
        self.edge.meters.count("posthouse_relay_commands_total", command.verb if verb else "unknown")
        if verb is None or not verb.has_own_rate:
            self._bucket, wait_ns = take(self._bucket, self._rate, self.edge.clock.boot_ns())
            if wait_ns:
                self._fault(error("commands_too_fast", per_s=self._rate.per_s))
                return
        try:
            if verb is None:
                raise error("verb_unknown", verb=command.verb[:40])
            verb.run(self, command.arguments)
        except PosthouseError as failure:
            self._fault(failure)
        else:
            self._faults = 0

    def submit(self, events: Sequence[bytes]) -> None:
        """Hand events to the accept path, behind what was handed over before."""
        if not events:
            return
        self.edge.meters.count("posthouse_relay_commands_total", "EVENT", by=len(events))
        try:
            self._lane.submit(events)
        except PosthouseError as failure:
            ids = [_claimed_id(event) for event in events]
            self._answer(ids, [Declined(event_id, failure) for event_id in ids])
            return
        if self._lane.in_flight() >= self.edge.limits.events_in_flight:
            self._has_room.clear()

    def _answer(self, ids: Sequence[str | None], answers: Sequence[Answer]) -> None:
        if self._lane.in_flight() < self.edge.limits.events_in_flight:
            self._has_room.set()
        count_answers(self.edge.meters, answers)
        if self.ending is not None:  # nothing follows a close frame
            return
        texts = [_ok_text(event_id, answer) for event_id, answer in zip(ids, answers, strict=True)]
        texts += [text for answer in answers if (text := queue_full_text(answer)) is not None]
        self.outbox.send(list_text(texts))

    def _fault(self, failure: PosthouseError) -> None:
        self._faults += 1
        self.notice(failure)
        if self._faults >= self.edge.limits.faults_per_connection:
            self.end(1008, failure.code)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("stream_task_failed", reason=repr(failure), exc_info=failure)
            self.end(1011, "internal")
            self.outbox.abort()


def _claimed_id(event: bytes) -> str | None:
    try:
        return decode_event(event).id
    except PosthouseError:
        return None


_encode = msgspec.json.Encoder().encode


def _ok_text(event_id: str | None, answer: Answer) -> bytes:
    if isinstance(answer, Accepted):
        return b'["OK","%b",true,%b]' % ((event_id or answer.id).encode(), _encode(answer))
    return command_text("OK", event_id, False, answer.error.problem())
