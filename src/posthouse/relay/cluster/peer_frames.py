"""Frames between relays of one store: what they carry, and how answers and errors are written.

A frame is a JSON list that begins with its verb. A relay sends on the connections that it opened, and the other side
answers on the same connection; the number in a frame names its request. Both sides run the same software: a frame that
cannot be read ends the connection.

    EVENT event recipient            an ephemeral event for the live subscriptions of the peer
    PRESENCE {mesh: {node: agents}}  all nodes that are online at the sender; the first frame
    ONLINE mesh node agents          a change of it; null: the node is offline
    TAKE_OVER n mesh node instance   end the sessions of a node: another relay has its newest   -> DONE n
    LOCK n node operation arguments  an operation of a node, for the leader                     -> LOCKED n kind answer
    GONE n                           the caller of a LOCK is gone, or its watch has ended
    SUBMIT n [event]                 events for the leader                                      -> ANSWERS n [answer]
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.lock_api import LockGrant, LockList, LocksBroken, LockStatus
from posthouse.relay.wire.accept_results import (
    Accepted,
    Answer,
    ConfirmationAccepted,
    Declined,
    DeletionAccepted,
    MessageAccepted,
    MessageKnown,
    ReceiptAccepted,
    ReplacingAccepted,
)
from posthouse.relay.wire.lock_operations import (
    Acquire,
    Break,
    Freed,
    Inspect,
    ListLocks,
    LockAnswer,
    Release,
    Renew,
    Watch,
)

_REFUSED = "refused"
# The names are part of the frames and stay when a type gets another name.
_LOCK_ANSWERS: dict[str, type[Any]] = {
    "Granted": LockGrant,
    "Freed": Freed,
    "Broken": LocksBroken,
    "LockState": LockStatus,
    "LockPage": LockList,
}
_EVENT_ANSWERS: dict[str, type[Accepted]] = {
    "Accepted": Accepted,
    "ReplacingAccepted": ReplacingAccepted,
    "MessageAccepted": MessageAccepted,
    "MessageKnown": MessageKnown,
    "ReceiptAccepted": ReceiptAccepted,
    "ConfirmationAccepted": ConfirmationAccepted,
    "DeletionAccepted": DeletionAccepted,
}
_OPERATIONS: dict[str, type[Any]] = {
    "Acquire": Acquire,
    "Renew": Renew,
    "Release": Release,
    "Break": Break,
    "Inspect": Inspect,
    "Watch": Watch,
    "ListLocks": ListLocks,
}
_NAMES = {kind: name for table in (_LOCK_ANSWERS, _EVENT_ANSWERS, _OPERATIONS) for name, kind in table.items()}
LockOperation = Acquire | Renew | Release | Break | Inspect | ListLocks


def pack_error(failure: PosthouseError) -> dict[str, Any]:
    """Return an error as JSON."""
    return {"code": failure.code, "fields": failure.fields}


def unpack_error(packed: dict[str, Any]) -> PosthouseError:
    """Return the error that `pack_error` wrote."""
    return error(packed["code"], **packed["fields"])


def pack_lock_answer(answer: LockAnswer) -> tuple[str, Any]:
    """Return the kind of an answer, and the answer."""
    return (_REFUSED, pack_error(answer)) if isinstance(answer, PosthouseError) else (_NAMES[type(answer)], answer)


def unpack_lock_answer(kind: str, packed: Any) -> LockAnswer:
    """Return the answer that `pack_lock_answer` wrote."""
    if kind == _REFUSED:
        return unpack_error(packed)
    answer: LockAnswer = msgspec.convert(packed, _LOCK_ANSWERS[kind])
    return answer


def operation_name(kind: type[LockOperation]) -> str:
    """Return the name of a type of operations in frames."""
    return _NAMES[kind]


def unpack_operation(kind: str, packed: Any) -> LockOperation:
    """Return an operation by the name of its type."""
    operation: LockOperation = msgspec.convert(packed, _OPERATIONS[kind])
    return operation


def pack_answer(event_id: str | None, answer: Answer) -> tuple[str, str | None, Any]:
    """Return the answer to an event."""
    if isinstance(answer, Declined):
        return _REFUSED, event_id, pack_error(answer.error)
    return _NAMES[type(answer)], event_id, answer


def unpack_answer(kind: str, event_id: str | None, packed: Any) -> Answer:
    """Return the answer that `pack_answer` wrote."""
    if kind == _REFUSED:
        return Declined(event_id, unpack_error(packed))
    return msgspec.convert(packed, _EVENT_ANSWERS[kind])
