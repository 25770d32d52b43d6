"""The tools `send` and `status`: pass a message to the daemon, and show its state.

    queued      on the disk of this host; the relay has not acknowledged it
    sent        the relay has it; not every recipient's daemon has stored it
    confirmed   the daemon of every recipient has stored it
    read        the recipient's program was given the full text
    answered    a reply arrived
    rejected, dead, aborted, expired   it will not arrive
    not_queued  the queue of a reader of the topic was full; that reader gets it from the topic's history

A state never claims more than is known. When `send` answers, the message is on this host's disk. With `wait_s` the
message is a request: `send` answers with the reply, or refuses when the time is up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from posthouse.client.daemon.calls import SendOptions
from posthouse.mcp.tool import ToolCall, ToolSpec
from posthouse.mcp.tools.reading import of_item, short_id, show
from posthouse.model.errors import PosthouseError
from posthouse.model.message import validate_client_message_id
from posthouse.model.outbox_rules import MessageState

_WAITING = frozenset({"pending", "queued", "inflight"})
_GIVEN_UP = frozenset({"dead", "aborted"})


def outbox_state(status: str) -> MessageState:
    """Return the state that follows from the status of the outbox row alone."""
    if status in _WAITING:
        return MessageState.QUEUED
    return MessageState.DEAD if status in _GIVEN_UP else MessageState.SENT


def message_state(found: Mapping[str, Any], recipients: Sequence[str] | None) -> MessageState:
    """Return the state that the daemon knows; a message to many is confirmed once all recipients have it."""
    state = MessageState(found.get("state", MessageState.SENT))
    if state is MessageState.QUEUED and recipients is not None:  # the relay's answer was lost or is not written yet
        state = MessageState.SENT
    if state is MessageState.SENT and recipients and all(each == "confirmed" for each in recipients):
        return MessageState.CONFIRMED
    return state


class SendArguments(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    message: str
    reply_to: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    #: seconds to wait for the reply; the message is valid no longer than that
    wait_s: Annotated[float, Meta(gt=0)] | UnsetType = UNSET
    #: a model does not know its own usage; a program that calls the tool may
    usage: dict[str, Any] | UnsetType = UNSET


class SendAnswer(msgspec.Struct, omit_defaults=True):
    id: str
    state: MessageState
    #: True: a message with this key was sent before, and the relay has it
    duplicate: bool | UnsetType = UNSET
    #: the reply, if the call waited for it
    reply: dict[str, Any] | UnsetType = UNSET


async def run_send(call: ToolCall, arguments: SendArguments) -> SendAnswer:
    if not arguments.message.strip():
        raise call.invalid("message is empty")
    key = call.key if arguments.idempotency_key is UNSET else validate_client_message_id(arguments.idempotency_key)
    options: SendOptions = {
        "reply_to_id": None if arguments.reply_to is UNSET else await _whole_id(call, arguments.reply_to),
        "client_message_id": key,
        "usage": call.usage if arguments.usage is UNSET else arguments.usage,
    }
    if arguments.wait_s is not UNSET:
        return await _request(call, arguments, call.check_wait("wait_s", arguments.wait_s), options)
    accepted = await call.daemon.send(arguments.to, arguments.message, **options)
    message_id = accepted.message_id or accepted.broker_message_id
    return SendAnswer(
        id=key if message_id is None else short_id(message_id),
        state=outbox_state(accepted.status),
        duplicate=accepted.duplicate or UNSET,
    )


async def _request(call: ToolCall, arguments: SendArguments, wait_s: float, options: SendOptions) -> SendAnswer:
    """Send a message as a request and wait for the reply."""
    async with call.with_progress(wait_s, f"waiting for {arguments.to}"):
        answer = await call.daemon.request(arguments.to, arguments.message, wait_s, **options)
    item = await call.daemon.item(answer.message_id)
    return SendAnswer(
        id=short_id(item.reply_to_id or answer.message_id),
        state=MessageState.ANSWERED,
        reply=msgspec.to_builtins(show([of_item(item)], None)[0]),
    )


async def _whole_id(call: ToolCall, given: str) -> str:
    """Return the full id of the message that a reply answers; an id that the inbox does not have stays as it is."""
    try:
        return (await call.daemon.item(given)).message_id
    except PosthouseError as failure:
        if failure.code != "inbox_item_unknown":
            raise
        return given


SEND = ToolSpec(
    "send",
    "Send to a name or #topic, reply_to to answer, wait_s for a reply. One idempotency_key sends once.",
    SendArguments,
    SendAnswer,
    run_send,
    has_output_schema=True,
    unlisted=("usage",),
)
MAX_RECIPIENTS = 100


class StatusArguments(msgspec.Struct, forbid_unknown_fields=True):
    #: message id, or the idempotency key it was sent with
    id: str


class Recipient(msgspec.Struct):
    node: str
    #: as the relay reports it
    state: str


class StatusAnswer(msgspec.Struct, omit_defaults=True):
    id: str
    state: MessageState
    #: absent if the relay did not answer
    recipients: list[Recipient] | UnsetType = UNSET
    #: why the message is dead, or why it still waits
    reason: str | UnsetType = UNSET


async def run_status(call: ToolCall, arguments: StatusArguments) -> StatusAnswer:
    found = await call.daemon.message(arguments.id)
    row, relay = found["outbox"], found["relay"]
    recipients = None if relay is None else [_recipient(each) for each in relay["deliveries"]]
    state = message_state(found, None if recipients is None else [each.state for each in recipients])
    return StatusAnswer(
        id=short_id(row["message_id"] if row is not None else relay["id"]),
        state=state,
        recipients=UNSET if recipients is None else recipients[:MAX_RECIPIENTS],
        reason=_reason(state, row, found["relay_error"]),
    )


def _recipient(delivery: dict[str, Any]) -> Recipient:
    # without the reason: its text comes from the reader that rejected the message
    return Recipient(delivery["recipient"], delivery["state"])


def _reason(state: MessageState, row: dict[str, Any] | None, relay_error: str | None) -> str | UnsetType:
    if row is not None and row["status"] == "aborted":
        return f"aborted by {row['aborted_by']}"
    if row is not None and state in (MessageState.QUEUED, MessageState.DEAD) and row["last_error"]:
        return str(row["last_error"])
    return relay_error or UNSET if state is MessageState.SENT else UNSET


STATUS = ToolSpec(
    "status",
    "State of a message: queued, sent, confirmed by its host, read, answered or lost.",
    StatusArguments,
    StatusAnswer,
    run_status,
    is_read_only=True,
    has_output_schema=True,
)
