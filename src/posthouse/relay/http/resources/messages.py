"""/v1/messages/{id}: where a message is, per recipient."""

from __future__ import annotations

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.model.errors import error
from posthouse.model.event_structure import is_event_id
from posthouse.relay.deliver.rows import State
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Route


class DeliveryState(msgspec.Struct):
    """How far a message has come to one recipient; times in nanoseconds, null for what has not happened."""

    recipient: str
    state: State
    #: whether it waited in the queue; null until it is sent
    was_stored: bool | None
    #: how often it was sent
    attempts: int
    queued_at_ns: int
    sent_at_ns: int | None
    closed_at_ns: int | None
    #: what a reader said that rejected it, or which bound made it dead
    reason: str | None


class MessageStates(msgspec.Struct):
    """A message and where it is; its content is an event."""

    id: str
    seq: int
    mesh: str
    sender: str
    client_message_id: str
    destination_kind: str
    destination_ref: str
    first_seen_at_ns: int
    #: whether its content is still here
    history_available: bool
    mentions: list[str]
    deliveries: list[DeliveryState]


async def message(call: Call) -> Answer:
    """Return the states of a message that the asker may see."""
    message_id = call.params["id"]
    if not is_event_id(message_id):
        raise error("id_invalid", id=message_id[:80], reason="an event id is 64 lower-case hexadecimal digits")
    return json_answer(msgspec.convert(await call.edge.core.states.message(call.node, message_id), MessageStates))


ROUTES = (Route("GET", "/v1/messages/{id}", message, "Show where a message is", answers={200: MessageStates}),)
