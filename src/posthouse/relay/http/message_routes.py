"""/v1/messages/{id} and /v1/meshes/{mesh}/queues: where a message is, what waits for whom, purge and requeue."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.errors import error
from posthouse.model.event import is_event_id
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import EVENT_ID, LIMIT, READER
from posthouse.relay.messages.operator_view import states_named
from posthouse.relay.wire.delivery_rows import State


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


async def show_message(call: RelayCall) -> HttpResponse:
    """Return the states of a message that the asker may see."""
    message_id = call.params["id"]
    if not is_event_id(message_id):
        raise error("id_invalid", id=message_id[:80], reason="an event id is 64 lower-case hexadecimal digits")
    return json_response(
        msgspec.convert(await call.context.engine.states.message(call.node, message_id), MessageStates)
    )


MESSAGE_ROUTES = (
    Route("GET", "/v1/messages/{id}", show_message, "Show where a message is", responses={200: MessageStates}),
)
Which = Literal["open", "parked", "queued", "sent", "confirmed", "rejected", "dead", "expired", "purged", "blocked"]
After = Annotated[str, Meta(description="Where to go on: `next` of a former answer.", max_length=400)]


class QueueQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of the list of queues."""

    after: After | None = None
    limit: Annotated[int, LIMIT] | None = None


class Queue(msgspec.Struct):
    """One reader's queue."""

    recipient: str
    #: unconfirmed messages
    depth: int
    #: rejected and dead ones
    parked: int
    #: ids of confirmations that wait for this node as a sender
    confirmations: int
    oldest_ns: int | None


class QueueList(msgspec.Struct):
    """Queues in which something is; `next` of null says that there are no more."""

    queues: list[Queue]
    next: str | None


class QueueRowsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Rows of queues."""

    node: Annotated[str, READER] | None = None
    state: Annotated[Which, Meta(description="A state, or open, or parked.")] = "open"
    after: After | None = None
    limit: Annotated[int, LIMIT] | None = None


class QueueRow(msgspec.Struct):
    """A message in a queue, without its content."""

    id: str
    seq: int
    #: its place in the queue
    position: int
    recipient: str
    sender: str
    state: State
    was_stored: bool | None
    attempts: int
    timeouts: int
    flaps: int
    queued_at_ns: int
    sent_at_ns: int | None
    closed_at_ns: int | None
    reason: str | None


async def list_queue_rows(call: RelayCall) -> HttpResponse:
    """List the messages in one queue, or in all of a mesh; a reader may look at its own."""
    given = call.arguments(QueueRowsQuery)
    limit = given.limit or QUERY_MAX_LIMIT
    found = await call.context.engine.queues.rows(
        call.node, call.params["mesh"], given.node, sorted(states_named(given.state)), _read_after(given.after), limit
    )
    following = f"{found[-1]['position']} {found[-1]['recipient']}" if len(found) == limit else None
    return json_response(QueueRows(msgspec.convert(found, list[QueueRow]), following))


class QueueRows(msgspec.Struct):
    """Rows in the order of the queue."""

    rows: list[QueueRow]
    next: str | None


class PurgeQueue(msgspec.Struct, forbid_unknown_fields=True):
    """What to take out of a queue for good: the messages named, or all in a state."""

    node: Annotated[str, READER]
    ids: list[Annotated[str, EVENT_ID]] | None = None
    state: Literal["open", "parked", "queued", "sent", "rejected", "dead"] = "open"


class RequeueMessages(msgspec.Struct, forbid_unknown_fields=True):
    """Which parked messages to open again: those named, or all of the reader."""

    node: Annotated[str, READER]
    ids: list[Annotated[str, EVENT_ID]] | None = None


class PurgedMessages(msgspec.Struct):
    """The ids of the messages that were purged."""

    purged: list[str]


class Requeued(msgspec.Struct):
    """The ids of the messages that wait again, and of those that found no room."""

    requeued: list[str]
    no_room: list[str]


async def list_queues(call: RelayCall) -> HttpResponse:
    """List the queues of a mesh in which something is."""
    given = call.arguments(QueueQuery)
    limit = given.limit or QUERY_MAX_LIMIT
    found = await call.context.engine.queues.overview(call.node, call.params["mesh"], given.after or "", limit)
    following = found[-1]["recipient"] if len(found) == limit else None
    return json_response(QueueList(msgspec.convert(found, list[Queue]), following))


async def purge_queue(call: RelayCall) -> HttpResponse:
    """Take messages out of a queue for good."""
    node, given = call.node, await call.body(PurgeQueue)
    states = sorted(states_named(given.state))
    purged = await call.context.engine.queues.purge(node, call.params["mesh"], given.node, given.ids, states)
    return json_response(PurgedMessages(purged))


async def requeue_messages(call: RelayCall) -> HttpResponse:
    """Open parked messages again, at the tail of the queue."""
    node, given = call.node, await call.body(RequeueMessages)
    requeued, no_room = await call.context.engine.queues.requeue(node, call.params["mesh"], given.node, given.ids)
    return json_response(Requeued(requeued, no_room))


def _read_after(after: str | None) -> tuple[int, str]:
    position, _, node = (after or "0 ").partition(" ")
    if not position.isascii() or not position.isdigit() or len(position) > 18:
        raise error("parameter_invalid", name="after", reason="it is not what a former answer gave")
    return int(position), node


_QUEUES_PATH = "/v1/meshes/{mesh}/queues"
QUEUE_ROUTES = (
    Route("GET", _QUEUES_PATH, list_queues, "List queues (admins)", query=QueueQuery, responses={200: QueueList}),
    Route(
        "GET",
        f"{_QUEUES_PATH}/rows",
        list_queue_rows,
        "List messages in queues (admins)",
        query=QueueRowsQuery,
        responses={200: QueueRows},
    ),
    Route(
        "POST",
        f"{_QUEUES_PATH}/purge",
        purge_queue,
        "Purge a queue (admins)",
        bodies=(PurgeQueue,),
        responses={200: PurgedMessages},
    ),
    Route(
        "POST",
        f"{_QUEUES_PATH}/requeue",
        requeue_messages,
        "Requeue parked messages (admins)",
        bodies=(RequeueMessages,),
        responses={200: Requeued},
    ),
)
