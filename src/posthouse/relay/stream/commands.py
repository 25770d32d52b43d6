"""The commands that a client may send on a stream, and the route that opens a stream.

A verb is a function of the connection and its arguments (JSON bytes). It must not wait: longer work is started with
`connection.start`. A raised error becomes a NOTICE, unless the verb has its own answer. The connection submits events
and confirmations itself, the events of a frame as one list; EVENT is here only for its malformed forms. Lock answers
carry the caller's req, because they may overtake each other.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
from aiohttp import WSCloseCode

from posthouse.http.response import HttpResponse
from posthouse.http.router import Route
from posthouse.model.address import AGENTS_MAX, validate_agent_name
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import is_event_id
from posthouse.model.limits import INT64_MAX, LOCK_WATCHES_MAX, RECEIVE_WINDOW, RECEIVE_WINDOW_MAX
from posthouse.model.strict_json import convert_with_ns, parse_json
from posthouse.relay.accept.mesh_registry import Right
from posthouse.relay.context import RelayCall, prove_challenge_now
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.stream.connection import Connection, Verb
from posthouse.relay.stream.subscriptions import close_subscription, count_events, open_subscription, reader_of
from posthouse.relay.wire.frames import expect, read_object
from posthouse.relay.wire.lock_operations import (
    Acquire,
    Break,
    Inspect,
    ListLocks,
    LockAnswer,
    Release,
    Renew,
    Unwatch,
    Unwatched,
    Watch,
)
from posthouse.relay.wire.websocket import POLICY_VIOLATION, serve_websocket


def authenticate(connection: Connection, arguments: Sequence[bytes]) -> None:
    """AUTH: verify the proof for the challenge of HELLO; later commands of the same frame run as that node."""
    expect(arguments, "AUTH", '["AUTH", event]', 1, 1)
    if connection.node is not None:
        raise error("already_authenticated")
    context = connection.context
    try:
        node = prove_challenge_now(context, arguments[0], connection.address, connection.name)
        connection.log_in(node)
    except PosthouseError as failure:
        connection.notice(failure)
        is_transient = isinstance(failure, Transient)
        connection.end(WSCloseCode.TRY_AGAIN_LATER if is_transient else POLICY_VIOLATION, failure.code)
        return
    connection.send("AUTHED", {"node": node, "meshes": context.engine.meshes_of(node)})


def refuse_event(connection: Connection, arguments: Sequence[bytes]) -> None:
    """EVENT: refuse a form that the connection did not accept as an event."""
    raise error("frame_malformed", reason=f"EVENT has one argument, an event, not {len(arguments)}")


_RECEIVE_FORM = '["RECEIVE", mesh, {window, instance, agents}]'
_RECEIVE_OPTIONS = frozenset({"window", "instance", "agents"})
_INSTANCE_MAX_CHARS = 64


def open_reader_session(connection: Connection, arguments: Sequence[bytes]) -> None:
    """RECEIVE: open the reader session of a mesh."""
    expect(arguments, "RECEIVE", _RECEIVE_FORM, 1, 2)
    node, mesh = reader_of(connection), parse_json(arguments[0])
    if type(mesh) is not str:
        raise error("frame_malformed", reason=f"RECEIVE is {_RECEIVE_FORM}")
    options = read_object(arguments[1], _RECEIVE_OPTIONS, "RECEIVE") if len(arguments) > 1 else {}
    sessions = connection.context.engine.sessions
    connection.context.engine.meshes.require(node, mesh, Right.READ)
    if mesh in connection.sessions:
        raise error("mailbox_open", mesh=mesh)
    session = ReaderSession(sessions, connection, mesh, node, _window(options), _instance(options))
    session.agents = _agents(options.get("agents", []))
    connection.sessions[mesh] = session
    sessions.open(session)
    session.wake()


def _window(options: dict[str, Any]) -> int:
    window = options.get("window", RECEIVE_WINDOW)
    if type(window) is not int or not 1 <= window <= RECEIVE_WINDOW_MAX:
        raise error("frame_malformed", reason=f"window is a number from 1 to {RECEIVE_WINDOW_MAX}, or absent")
    return window


def _instance(options: dict[str, Any]) -> str | None:
    instance = options.get("instance")
    if instance is not None and (type(instance) is not str or not 1 <= len(instance) <= _INSTANCE_MAX_CHARS):
        raise error("frame_malformed", reason=f"instance is text of 1 to {_INSTANCE_MAX_CHARS} characters, or absent")
    return instance


def _agents(names: Any) -> tuple[str, ...]:
    if type(names) is not list or len(names) > AGENTS_MAX or not all(type(name) is str for name in names):
        raise error("frame_malformed", reason=f"agents is a list of at most {AGENTS_MAX} names, or absent")
    return tuple(dict.fromkeys(validate_agent_name(name) for name in names))


_AGENTS_FORM = '["AGENTS", mesh, names]'


def change_agents(connection: Connection, arguments: Sequence[bytes]) -> None:
    """AGENTS: set which agents of the node are online, replacing those that RECEIVE or an earlier AGENTS named."""
    expect(arguments, "AGENTS", _AGENTS_FORM, 2, 2)
    mesh = parse_json(arguments[0])
    session = connection.sessions.get(mesh) if type(mesh) is str else None
    if session is None:
        raise error("frame_malformed", reason=f"{_AGENTS_FORM} follows RECEIVE of the same mesh")
    connection.context.engine.sessions.set_agents(session, _agents(parse_json(arguments[1])))


_FILLED_FORM = '["FILLED", mesh, topic, seq]'


def close_gap(connection: Connection, arguments: Sequence[bytes]) -> None:
    """FILLED: say that the reader has the messages of a gap, up to a seq."""
    expect(arguments, "FILLED", _FILLED_FORM, 3, 3)
    mesh, topic, seq = map(parse_json, arguments)
    session = connection.sessions.get(mesh) if type(mesh) is str else None
    if session is None or type(topic) is not str or type(seq) is not int or not 0 <= seq <= INT64_MAX:
        raise error("frame_malformed", reason=f"{_FILLED_FORM} follows RECEIVE of the same mesh")
    connection.context.engine.sessions.close_gap(session, topic, seq)


_REJECT_FORM = '["REJECT", id, reason]'
_REASON_MAX_CHARS = 500


def reject_message(connection: Connection, arguments: Sequence[bytes]) -> None:
    """REJECT: reject one message."""
    expect(arguments, "REJECT", _REJECT_FORM, 2, 2)
    node = reader_of(connection)
    message_id, reason = parse_json(arguments[0]), parse_json(arguments[1])
    if type(message_id) is not str or not is_event_id(message_id):
        raise error("frame_malformed", reason=f"REJECT is {_REJECT_FORM}")
    if type(reason) is not str or not 1 <= len(reason) <= _REASON_MAX_CHARS:
        raise error("frame_malformed", reason=f"a reason is text of 1 to {_REASON_MAX_CHARS} characters")
    connection.start(_reject(connection, node, message_id, reason))


async def _reject(connection: Connection, node: str, message_id: str, reason: str) -> None:
    try:
        await connection.context.engine.queues.reject(node, message_id, reason)
    except PosthouseError as failure:
        connection.send("OK", message_id, False, failure.problem())
        return
    connection.send("OK", message_id, True, {"id": message_id, "state": "rejected"})


log = structlog.get_logger(__name__)
REQ_MAX_CHARS = 64
_TEXT_DECODER = msgspec.json.Decoder(str)
LockArguments = Acquire | Renew | Release | Break | Inspect | Watch | Unwatch | ListLocks
LOCK_OPERATIONS: dict[str, type[LockArguments]] = {
    "acquire": Acquire,
    "renew": Renew,
    "release": Release,
    "break": Break,
    "inspect": Inspect,
    "watch": Watch,
    "unwatch": Unwatch,
    "list": ListLocks,
}


def operate_lock(connection: Connection, arguments: Sequence[bytes]) -> None:
    """LOCK: submit one lock operation."""
    expect(arguments, "LOCK", '["LOCK", req, op, args]', 3, 3)
    req = _read_text(arguments[0])
    if req is None or not 1 <= len(req) <= REQ_MAX_CHARS:
        raise error("frame_malformed", reason=f"req of LOCK is text of 1 to {REQ_MAX_CHARS} characters")
    try:
        _submit_lock(connection, req, _read_operation(arguments))
    except PosthouseError as refusal:
        connection.send("LOCKED", req, refusal.problem())


def _read_operation(arguments: Sequence[bytes]) -> LockArguments:
    kind = LOCK_OPERATIONS.get(_read_text(arguments[1]) or "")
    if kind is None:
        raise error("operation_unknown", operations=", ".join(LOCK_OPERATIONS))
    try:
        request = convert_with_ns(parse_json(arguments[2]), kind)
    except msgspec.ValidationError as fault:
        raise error("body_invalid", reason=str(fault)) from fault
    request.check()
    return request


def _read_text(argument: bytes) -> str | None:
    try:
        return _TEXT_DECODER.decode(argument)
    except msgspec.MsgspecError:
        return None


def _submit_lock(connection: Connection, req: str, request: LockArguments) -> None:
    node, locks = reader_of(connection), connection.context.engine.locks
    if isinstance(request, ListLocks):
        connection.spend_rate()
        _list_locks(connection, req, node, request)
        return
    if isinstance(request, Watch):
        _watch_lock(connection, req, node, request)
        return
    if isinstance(request, Unwatch):
        connection.end_watch((request.mesh, request.resource))
        connection.send("LOCKED", req, Unwatched(request.resource, request.mesh))
        return
    locks.submit(node, request, partial(_answer_lock, connection, req), lambda: not connection.write_buffer.is_open)


def _answer_lock(connection: Connection, req: str, answer: LockAnswer | None, failure: BaseException | None) -> None:
    refusal = answer if failure is None else failure
    if refusal is None:  # the caller is gone
        return
    if isinstance(refusal, PosthouseError):
        connection.send("LOCKED", req, refusal.problem())
    elif isinstance(refusal, BaseException):
        log.error("lock_failed", exc_info=refusal)
        connection.send("LOCKED", req, error("internal", reason=type(refusal).__name__).problem())
    else:
        connection.send("LOCKED", req, refusal)


def _watch_lock(connection: Connection, req: str, node: str, request: Watch) -> None:
    """Answer with the state of the lock now and after each change; a second watch of a lock ends the first."""
    key, watches = (request.mesh, request.resource), connection.lock_watches
    connection.end_watch(key)
    if len(watches) >= LOCK_WATCHES_MAX:
        raise error("lock_watch_limit", limit=LOCK_WATCHES_MAX)

    def on_state(state: LockAnswer) -> None:
        if isinstance(state, PosthouseError):  # the relay has ended the watch
            watches.pop(key, None)
        _answer_lock(connection, req, state, None)

    watches[key] = connection.context.engine.locks.watch(node, request, on_state)


def _list_locks(connection: Connection, req: str, node: str, request: ListLocks) -> None:
    async def answer() -> None:
        connection.send("LOCKED", req, await connection.context.engine.locks.list(node, request))

    connection.start_read(answer, lambda refusal: connection.send("LOCKED", req, refusal.problem()))


VERBS: dict[str, Verb] = {
    "AGENTS": Verb(change_agents),
    "AUTH": Verb(authenticate),
    "CLOSE": Verb(close_subscription),
    "CONFIRM": Verb(Connection.confirm, has_own_rate=True),
    "COUNT": Verb(count_events),
    "EVENT": Verb(refuse_event),
    "FILLED": Verb(close_gap),
    "LOCK": Verb(operate_lock, has_own_rate=True),
    "RECEIVE": Verb(open_reader_session),
    "REJECT": Verb(reject_message),
    "REQ": Verb(open_subscription),
}


_RUN = secrets.token_hex(8)  # relays that share a key must not take the challenge of another one's stream for theirs
_numbers = itertools.count(1)


async def open_stream(call: RelayCall) -> HttpResponse:
    """Speak the stream protocol until either side ends it."""
    call.context.engine.require_current()
    context, name = call.context, f"stream {_RUN} {next(_numbers)}"
    response = await serve_websocket(
        call.request,
        context.limits,
        context.limits.frame_bytes,
        context.connections,
        context.outbound,
        lambda socket, write_buffer: Connection(context, socket, write_buffer, name, VERBS, call.address),
        call.address,
    )
    return HttpResponse(101, response=response)


STREAM_ROUTES = (
    Route(
        "GET",
        "/v1/stream",
        open_stream,
        "Open the WebSocket stream",
        is_public=True,
        responses={101: None},
        media_type="text/plain",
        may_wait=True,
    ),
)
