"""`send`: hand a message to the daemon. It is on this host's disk when the answer comes; the answer says no more."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.mcp.call import ToolCall
from posthouse.mcp.state import State, outbox_state
from posthouse.mcp.tools.spec import ToolSpec
from posthouse.model.clock import system_clock
from posthouse.model.ids import Minter
from posthouse.model.message import validate_client_message_id

_MINTER = Minter(system_clock())


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    message: str
    reply_to: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


class Answer(msgspec.Struct, omit_defaults=True):
    id: str
    state: State
    #: repeat a call with it to retry without sending twice
    idempotency_key: str
    #: this key was sent before, and the relay has the message
    duplicate: bool | UnsetType = UNSET


async def run(call: ToolCall, given: Arguments) -> Answer:
    key = call.meta_key or _MINTER.mint() if given.idempotency_key is UNSET else given.idempotency_key
    validate_client_message_id(key)
    accepted = await call.daemon.send(
        given.to,
        given.message,
        reply_to_id=None if given.reply_to is UNSET else given.reply_to,
        client_message_id=key,
    )
    return Answer(
        id=accepted.message_id or accepted.broker_message_id or key,
        state=outbox_state(accepted.status),
        idempotency_key=accepted.client_message_id,
        duplicate=accepted.duplicate or UNSET,
    )


SEND = ToolSpec(
    "send",
    "Send to a member or #topic, as yourself. Give reply_to when answering: its budget is inherited. "
    "The same idempotency_key sends once.",
    Arguments,
    Answer,
    run,
)
