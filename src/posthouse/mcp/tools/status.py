"""`status`: how far a message has come, and for whom. Only what is known is told."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.mcp.call import ToolCall
from posthouse.mcp.state import State, message_state
from posthouse.mcp.tools.spec import ToolSpec

MAX_RECIPIENTS = 100


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    #: message id, or the idempotency key it was sent with
    id: str


class Recipient(msgspec.Struct):
    node: str
    #: as the relay tells it
    state: str


class Answer(msgspec.Struct, omit_defaults=True):
    id: str
    state: State
    #: absent while the relay does not tell
    recipients: list[Recipient] | UnsetType = UNSET
    #: why it is dead, or why it still waits
    reason: str | UnsetType = UNSET


async def run(call: ToolCall, given: Arguments) -> Answer:
    found = await call.daemon.message(given.id)
    row, relay = found["outbox"], found["relay"]
    recipients = None if relay is None else [_recipient(each) for each in relay["deliveries"]]
    state = message_state(row, None if recipients is None else [each.state for each in recipients])
    return Answer(
        id=row["message_id"] if row is not None else relay["id"],
        state=state,
        recipients=UNSET if recipients is None else recipients[:MAX_RECIPIENTS],
        reason=_reason(state, row, found["relay_error"]),
    )


def _recipient(delivery: dict[str, Any]) -> Recipient:
    # not its reason: a reader that rejects a message words that itself
    return Recipient(delivery["recipient"], delivery["state"])


def _reason(state: State, row: dict[str, Any] | None, relay_error: str | None) -> str | UnsetType:
    if row is not None and row["status"] == "aborted":
        return f"given up by {row['aborted_by']}"
    if row is not None and state in ("queued", "dead") and row["last_error"]:
        return str(row["last_error"])
    return relay_error or UNSET if state == "sent" else UNSET


STATUS = ToolSpec(
    "status",
    "How far a message is: queued here, sent (relay has it), confirmed (recipient's host has it, maybe unread), dead.",
    Arguments,
    Answer,
    run,
    is_read_only=True,
)
