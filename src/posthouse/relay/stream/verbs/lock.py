"""["LOCK", req, op, args]: acquire, renew, release, inspect or list locks; answered by ["LOCKED", req, ...].

Answers carry the caller's req and may overtake each other: a wait does not hold up what is asked after it. A
connection that ends gives up its waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from posthouse.model.errors import PosthouseError, error
from posthouse.model.strict_json import parse_json
from posthouse.relay.locks.answers import Answer
from posthouse.relay.locks.arguments import Acquire, Inspect, ListLocks, Release, Renew
from posthouse.relay.stream.verbs.arguments import expect, reader_of

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

log = structlog.get_logger(__name__)
REQ_MAX_CHARS = 64
_TEXT = msgspec.json.Decoder(str)
Arguments = Acquire | Renew | Release | Inspect | ListLocks
_OPERATIONS: dict[str, type[Arguments]] = {
    "acquire": Acquire,
    "renew": Renew,
    "release": Release,
    "inspect": Inspect,
    "list": ListLocks,
}


def lock(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Do one operation on locks."""
    expect(arguments, "LOCK", '["LOCK", req, op, args]', 3, 3)
    req = _text(arguments[0])
    if req is None or not 1 <= len(req) <= REQ_MAX_CHARS:
        raise error("frame_malformed", reason=f"req of LOCK is a text of 1 to {REQ_MAX_CHARS} characters")
    try:
        _ask(connection, req, _read(arguments))
    except PosthouseError as refusal:
        connection.send("LOCKED", req, refusal.problem())


def _read(arguments: Sequence[bytes]) -> Arguments:
    kind = _OPERATIONS.get(_text(arguments[1]) or "")
    if kind is None:
        raise error("operation_unknown", operations=", ".join(_OPERATIONS))
    try:
        wanted = msgspec.convert(parse_json(arguments[2]), kind)
    except msgspec.ValidationError as fault:
        raise error("body_invalid", reason=str(fault)) from fault
    wanted.check()
    return wanted


def _text(argument: bytes) -> str | None:
    try:
        return _TEXT.decode(argument)
    except msgspec.MsgspecError:
        return None


def _ask(connection: Connection, req: str, wanted: Arguments) -> None:
    node, locks = reader_of(connection), connection.edge.core.locks
    if isinstance(wanted, ListLocks):
        connection.start(_list(connection, req, node, wanted))
        return
    locks.put(node, wanted, partial(_answer, connection, req), lambda: not connection.outbox.is_open)


def _answer(connection: Connection, req: str, answer: Answer | None, failure: BaseException | None) -> None:
    refusal = answer if failure is None else failure
    if refusal is None:  # its caller was gone
        return
    if isinstance(refusal, PosthouseError):
        connection.send("LOCKED", req, refusal.problem())
    elif isinstance(refusal, BaseException):
        log.error("lock_failed", exc_info=refusal)
        connection.send("LOCKED", req, error("internal", reason=type(refusal).__name__).problem())
    else:
        connection.send("LOCKED", req, refusal)


async def _list(connection: Connection, req: str, node: str, wanted: ListLocks) -> None:
    try:
        connection.send("LOCKED", req, await connection.edge.core.locks.list(node, wanted))
    except PosthouseError as refusal:
        connection.send("LOCKED", req, refusal.problem())
