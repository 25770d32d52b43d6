"""The serving side of a connection between relays: answers the frames of another relay of this store.

The route has verified that the peer has the relay's key. The verbs are those of posthouse.relay.cluster.peer_frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from posthouse.model.errors import PosthouseError, error
from posthouse.relay.accept.submission import Answered
from posthouse.relay.cluster.peer_frames import pack_answer, pack_error, pack_lock_answer, unpack_operation
from posthouse.relay.locks.service import Locks
from posthouse.relay.locks.watches import LockWatch
from posthouse.relay.wire.frames import WriteBuffer, command_text, text_frame
from posthouse.relay.wire.lock_operations import ListLocks, LockAnswer, Watch
from posthouse.relay.wire.websocket import POLICY_VIOLATION, Frame, WebSocket, WebSocketConnection

log = structlog.get_logger(__name__)


class PeerHost(Protocol):
    """What a peer may ask for."""

    @property
    def leading_locks(self) -> Locks | None:
        """The locks, if this relay leads."""
        ...

    def take_ephemeral(self, raw: bytes, recipient: str | None) -> None:
        """Pass an ephemeral event to live subscriptions."""
        ...

    def take_presence(self, peer: object, online: dict[str, dict[str, list[str]]]) -> None:
        """Replace the nodes that are online at a peer."""
        ...

    def take_online(self, peer: object, mesh: str, node: str, agents: list[str] | None) -> None:
        """Change the agents of a node that is online at a peer."""
        ...

    def end_sessions(self, mesh: str, node: str, instance: str | None, on_done: Callable[[], None]) -> None:
        """End the sessions of a node; call `on_done` once their deferred writes are committed."""
        ...

    def submit(self, events: Sequence[bytes], on_answers: Callable[[Sequence[Answered]], None]) -> None:
        """Submit events of a node of the peer."""
        ...


class PeerConnection(WebSocketConnection):
    """One relay that is connected to this one."""

    def __init__(
        self, host: PeerHost, socket: WebSocket, write_buffer: WriteBuffer, relay: str, ping_s: float, pong_s: float
    ) -> None:
        super().__init__(socket, write_buffer, ping_s, pong_s)
        self._host = host
        self._relay = relay
        self._verbs: dict[str, Callable[..., None]] = {
            "EVENT": self._take_event,
            "PRESENCE": partial(host.take_presence, self),
            "ONLINE": partial(host.take_online, self),
            "TAKE_OVER": self._take_over,
            "LOCK": self._operate_lock,
            "GONE": self._forget,
            "SUBMIT": self._submit,
        }
        #: numbers of lock operations whose callers wait
        self._waiting: set[int] = set()
        self._watches: dict[int, tuple[Locks, LockWatch]] = {}

    @property
    def identity(self) -> str | None:
        return self._relay

    def greet(self) -> None:
        self.accept_member(self._relay)

    def refuse_size(self) -> None:
        self.end(POLICY_VIOLATION, "frame_too_large")

    def take_frame(self, frame: Frame) -> None:
        if self.ending is not None:
            return
        try:
            verb, *arguments = msgspec.json.decode(frame.data, type=list[Any])
            self._verbs[verb](*arguments)
        except Exception:
            log.exception("peer_frame_failed")
            self.end(POLICY_VIOLATION, "frame_malformed")

    async def close(self) -> None:
        self._waiting.clear()
        for locks, watch in self._watches.values():
            locks.watches.remove(watch)
        self._host.take_presence(self, {})
        await super().close()

    def _reply(self, *parts: Any) -> None:
        if self.ending is None:
            self.write_buffer.write(text_frame(command_text(*parts)))

    def _take_event(self, event: dict[str, Any], recipient: str | None) -> None:
        self._host.take_ephemeral(msgspec.json.encode(event), recipient)

    def _take_over(self, number: int, mesh: str, node: str, instance: str | None) -> None:
        self._host.end_sessions(mesh, node, instance, lambda: self._reply("DONE", number))

    def _submit(self, number: int, events: list[dict[str, Any]]) -> None:
        def answer(answered: Sequence[Answered]) -> None:
            self._reply("ANSWERS", number, None, [pack_answer(*each) for each in answered])

        try:
            self._host.submit([msgspec.json.encode(event) for event in events], answer)
        except PosthouseError as refusal:
            self._reply("ANSWERS", number, pack_error(refusal), [])

    def _operate_lock(self, number: int, node: str, kind: str, packed: dict[str, Any]) -> None:
        operation, locks = unpack_operation(kind, packed), self._host.leading_locks
        if locks is None:
            self._answer_lock(number, error("leader_lost"), None)
        elif isinstance(operation, ListLocks):
            self.start(self._list_locks(number, locks, node, operation))
        elif isinstance(operation, Watch):
            self._watch_lock(number, locks, node, operation)
        else:
            self._waiting.add(number)
            locks.submit(node, operation, partial(self._answer_lock, number), lambda: number not in self._waiting)

    def _answer_lock(self, number: int, answer: LockAnswer | None, failure: BaseException | None) -> None:
        self._waiting.discard(number)
        if failure is not None:
            answer = failure if isinstance(failure, PosthouseError) else error("internal", reason=repr(failure)[:200])
        if answer is not None:
            self._reply("LOCKED", number, *pack_lock_answer(answer))

    def _watch_lock(self, number: int, locks: Locks, node: str, operation: Watch) -> None:
        try:
            watch = locks.watch(node, operation, lambda state: self._answer_lock(number, state, None))
        except PosthouseError as refusal:
            self._answer_lock(number, refusal, None)
        else:
            self._watches[number] = (locks, watch)

    async def _list_locks(self, number: int, locks: Locks, node: str, operation: ListLocks) -> None:
        try:
            self._answer_lock(number, await locks.list(node, operation), None)
        except PosthouseError as refusal:
            self._answer_lock(number, refusal, None)

    def _forget(self, number: int) -> None:
        self._waiting.discard(number)
        if (watched := self._watches.pop(number, None)) is not None:
            locks, watch = watched
            locks.watches.remove(watch)
