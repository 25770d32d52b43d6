"""The AsyncAPI document of the stream: every command that clients and relays exchange on the WebSocket.

docs/asyncapi.json is a copy of this document, which a test keeps up to date; other tests validate the frames of real
connections against it. The types are those that the relay validates arguments with, answers with, or that the client
decodes answers with. If you change a command: 1. its line here, 2.
`python -m posthouse.relay.asyncapi > docs/asyncapi.json`, 3. docs/protocol.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from posthouse.client.stream.frames import DeliveryInfo, Gap, ProfileEntry, RosterEntry
from posthouse.http.openapi import alternatives, encode_document, schema_components
from posthouse.http.response import HttpResponse, Problem
from posthouse.http.router import Route
from posthouse.model.event import Event
from posthouse.model.limits import FILTERS_PER_SUBSCRIPTION, INT64_MAX, QUERY_MAX_LIMIT, RECEIVE_WINDOW_MAX
from posthouse.model.lock_api import LockGrant, LockList, LocksBroken, LockStatus
from posthouse.model.message_api import ConfirmedItem, ReceiptEntry
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import EVENT_ID, NODE_ID
from posthouse.relay.stream.commands import LOCK_OPERATIONS
from posthouse.relay.wire.accept_results import (
    Accepted,
    ConfirmationAccepted,
    DeletionAccepted,
    MessageAccepted,
    MessageKnown,
    ReceiptAccepted,
    ReplacingAccepted,
)
from posthouse.relay.wire.frames import SUB_MAX_CHARS
from posthouse.relay.wire.lock_operations import Freed, Unwatched
from posthouse.version import __version__

Id = Annotated[str, EVENT_ID]
Node = Annotated[str, NODE_ID]
Sub = Annotated[str, Meta(description="A text of the client's choice.", min_length=1, max_length=SUB_MAX_CHARS)]
Seq = Annotated[int, Meta(description="Place in the relay's journal.", ge=0, le=INT64_MAX)]
Nanoseconds = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class Greeting(msgspec.Struct):
    """The relay's node id, the challenge that AUTH answers, and the features of the relay."""

    relay: Node
    challenge: str
    features: dict[str, Any]


class Login(msgspec.Struct):
    """The node of this connection and the meshes that it may read."""

    node: Node
    meshes: list[Any]


class ReqOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Where a subscription starts: after a cursor, or with the newest stored events."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=0, le=QUERY_MAX_LIMIT)] | None = None


class EventFilter(msgspec.Struct, forbid_unknown_fields=True):
    """Conditions that must all hold; of a list, one value. `#name` lists values of a tag."""

    ids: Annotated[list[Id], Meta(min_length=1)] = []
    authors: Annotated[list[Node], Meta(min_length=1)] = []
    kinds: Annotated[list[int], Meta(min_length=1)] = []
    mesh: str = ""
    since_ns: Nanoseconds = 0
    until_ns: Nanoseconds = INT64_MAX


class ReceiveOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages may be unconfirmed, which reader this is, and its agents that are online."""

    window: Annotated[int, Meta(ge=1, le=RECEIVE_WINDOW_MAX)] = 50
    instance: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    agents: list[str] = []


class RejectedMessage(msgspec.Struct):
    """The message is parked."""

    id: Id
    state: Literal["rejected"]


@dataclass(frozen=True)
class StreamCommand:
    """A command: its verb, its arguments in order, and the commands that answer it."""

    name: str
    verb: str
    summary: str
    #: name -> type, or a tuple of alternative types
    arguments: dict[str, Any]
    #: how many of the last arguments may be absent
    optional: int = 0
    #: type and maximum number of the arguments after these
    rest: tuple[Any, int] | None = None
    replies: tuple[str, ...] = ()


_ACCEPTED = (
    *(Accepted, ReplacingAccepted, MessageAccepted, MessageKnown, ConfirmationAccepted, ReceiptAccepted),
    *(DeletionAccepted, RejectedMessage),
)
_FILTERS = (EventFilter, FILTERS_PER_SUBSCRIPTION)
_LOCK_ANSWERS = (LockGrant, Freed, LocksBroken, LockStatus, LockList, Unwatched, Problem)
_LockOperation = Annotated[str, Meta(pattern=f"^({'|'.join(LOCK_OPERATIONS)})$")]
FROM_CLIENT = (
    StreamCommand("Auth", "AUTH", "Log in with a proof", {"proof": Event}, replies=("Authed", "Notice")),
    StreamCommand("Publish", "EVENT", "Publish an event", {"event": Event}, replies=("Ok", "QueueFull")),
    StreamCommand(
        "Subscribe", "REQ", "Ask for stored events, then live ones", {"sub": Sub, "options": ReqOptions},
        rest=_FILTERS, replies=("SubscribedEvent", "StoredEnd", "Closed"),
    ),
    StreamCommand("Unsubscribe", "CLOSE", "End a subscription", {"sub": Sub}),
    StreamCommand(
        "CountEvents", "COUNT", "Count stored events", {"sub": Sub}, rest=_FILTERS, replies=("Counted", "Closed")
    ),
    StreamCommand(
        "Receive", "RECEIVE", "Open the reader session of a mesh", {"mesh": str, "options": ReceiveOptions},
        optional=1, replies=("Roster", "QueueStatus", "Deliver", "Gaps", "Notice"),
    ),
    StreamCommand("Confirm", "CONFIRM", "Confirm messages of one sender", {"confirmation": Event}, replies=("Ok",)),
    StreamCommand(
        "Reject", "REJECT", "Park a message that cannot be processed",
        {"id": Id, "reason": Annotated[str, Meta(min_length=1, max_length=500)]}, replies=("Ok",),
    ),
    StreamCommand(
        "Filled", "FILLED", "Say that the messages of a gap were read", {"mesh": str, "topic": str, "last_seq": Seq}
    ),
    StreamCommand("Agents", "AGENTS", "Say which agents are online", {"mesh": str, "agents": list[str]}),
    StreamCommand(
        "Lock", "LOCK", "Ask for a lock, renew, release, break, inspect, watch or list",
        {"req": Sub, "operation": _LockOperation, "arguments": tuple(LOCK_OPERATIONS.values())}, replies=("Locked",),
    ),
)  # fmt: skip
FROM_RELAY = (
    StreamCommand("Hello", "HELLO", "Greet the client: first and once", {"greeting": Greeting}),
    StreamCommand("Authed", "AUTHED", "The login succeeded", {"login": Login}),
    StreamCommand(
        "Ok", "OK", "Answer to EVENT, CONFIRM and REJECT",
        {"id": Id | None, "accepted": bool, "answer": (*_ACCEPTED, Problem)},
    ),
    StreamCommand(
        "SubscribedEvent", "EVENT", "An event of a subscription", {"sub": Sub, "event": Event, "seq": Seq | None}
    ),
    StreamCommand("StoredEnd", "EOSE", "Live events follow", {"sub": Sub, "cursor": str | None}),
    StreamCommand(
        "Closed", "CLOSED", "The subscription has ended", {"sub": Sub, "problem": Problem, "cursor": str | None}
    ),
    StreamCommand("Counted", "COUNT", "Answer to COUNT", {"sub": Sub, "number": int}),
    StreamCommand("Notice", "NOTICE", "Refusal of input that has no other answer", {"code": str, "text": str}),
    StreamCommand("Roster", "ROSTER", "The members of the mesh", {"mesh": str, "members": list[RosterEntry]}),
    StreamCommand("QueueStatus", "QUEUE_STATUS", "How many messages wait", {"waiting": int}),
    StreamCommand("Deliver", "DELIVER", "A message", {"seq": Seq, "event": Event, "delivery": DeliveryInfo}),
    StreamCommand(
        "Confirmed", "CONFIRMED", "Messages of this node were confirmed",
        {"messages": list[ConfirmedItem], "confirmation": Event},
    ),
    StreamCommand(
        "Receipt", "RECEIPT", "Messages of this node were read or rejected",
        {"messages": list[ReceiptEntry], "receipt": Event},
    ),
    StreamCommand(
        "QueueFull", "QUEUE_FULL", "A recipient's queue is full", {"id": Id | None, "recipient": str, "text": str}
    ),
    StreamCommand("Gaps", "GAP", "Messages that the queue had no room for", {"mesh": str, "gaps": list[Gap]}),
    StreamCommand(
        "Presence", "PRESENCE", "A node came online or went offline",
        {"mesh": str, "node": Node, "state": Literal["online", "offline"], "agents": list[str]}, optional=1,
    ),
    StreamCommand("Profile", "PROFILE", "A member's profile changed", {"mesh": str, "profile": ProfileEntry}),
    StreamCommand("Locked", "LOCKED", "Answer to LOCK", {"req": Sub, "answer": _LOCK_ANSWERS}),
)  # fmt: skip


def describe_stream() -> dict[str, Any]:
    """Return the AsyncAPI document of the stream."""
    commands = (*FROM_CLIENT, *FROM_RELAY)
    types = list(dict.fromkeys(_types(commands)))
    schemas, components = schema_components(types)
    components["EventFilter"] = components["EventFilter"] | {
        "patternProperties": {"^#": {"type": "array", "items": {"type": "string"}, "minItems": 1}}
    }
    known = dict(zip(types, schemas, strict=True))
    channel = {"$ref": "#/channels/stream"}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "posthouse relay: stream",
            "version": __version__,
            "description": (
                "Each text frame is one command, or an array of commands. docs/protocol.md says what they mean. A "
                "number in a field whose name ends in _ns may be sent as decimal text."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            "stream": {
                "address": "/v1/stream",
                "description": "A WebSocket without extensions or subprotocol.",
                "messages": {each.name: {"$ref": f"#/components/messages/{each.name}"} for each in commands},
                "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
            }
        },
        "operations": {
            **{f"receive{each.name}": _operation("receive", each, channel) for each in FROM_CLIENT},
            **{f"send{each.name}": _operation("send", each, channel) for each in FROM_RELAY},
        },
        "components": {
            "messages": {
                each.name: {"name": each.verb, "summary": each.summary, "payload": _payload(each, known)}
                for each in commands
            },
            "schemas": components,
        },
    }


def _types(commands: Iterable[StreamCommand]) -> Iterable[Any]:
    for command in commands:
        yield from chain.from_iterable(alternatives(each) for each in command.arguments.values())
        if command.rest is not None:
            yield command.rest[0]


def _operation(action: str, command: StreamCommand, channel: dict[str, str]) -> dict[str, Any]:
    operation = {"action": action, "channel": channel, "summary": command.summary, "messages": [_message(command.name)]}
    if command.replies:
        operation["reply"] = {"channel": channel, "messages": [_message(name) for name in command.replies]}
    return operation


def _message(name: str) -> dict[str, str]:
    return {"$ref": f"#/channels/stream/messages/{name}"}


def _payload(command: StreamCommand, known: dict[Any, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a command in the form of draft 07, which AsyncAPI uses."""
    items: list[Any] = [{"const": command.verb}]
    for name, types in command.arguments.items():
        items.append({"title": name, "anyOf": [known[each] for each in alternatives(types)]})
    payload = {"type": "array", "items": items, "minItems": len(items) - command.optional}
    if command.rest is None:
        return payload | {"maxItems": len(items)}
    rest, most = command.rest
    return payload | {"additionalItems": known[rest], "maxItems": len(items) + most}


@lru_cache(maxsize=1)
def stream_document() -> bytes:
    """Return the document as the text that is committed and served."""
    return encode_document(describe_stream())


async def read_stream_document(call: RelayCall) -> HttpResponse:
    """Return the AsyncAPI document of this version."""
    return HttpResponse(200, stream_document())


STREAM_DOCUMENT_ROUTES = (
    Route(
        "GET",
        "/asyncapi.json",
        read_stream_document,
        "Read the AsyncAPI document of the stream",
        is_public=True,
        responses={200: dict[str, Any]},
    ),
)

if __name__ == "__main__":
    sys.stdout.buffer.write(stream_document())
