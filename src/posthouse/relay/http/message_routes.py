"""/v1/messages/{id} and /v1/meshes/{mesh}/queues: the state of a message, the queues of readers, purge and requeue.

A sender and its recipients see the state of a message; an administrator sees every queue of the mesh, a reader its
own. None of these routes returns the content of a message.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.errors import error
from posthouse.model.event import is_event_id
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.model.message_api import MessageStates, PurgedMessages, Queue, QueueList, QueueRow, QueueRows, Requeued
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import EVENT_ID, LIMIT, READER
from posthouse.relay.messages.operator_view import states_named
from posthouse.relay.wire.lock_operations import Via


async def show_message(call: RelayCall) -> HttpResponse:
    """Return the states of a message that the caller may see."""
    message_id = call.params["id"]
    if not is_event_id(message_id):
        raise error("id_invalid", id=message_id[:80], reason="an event id is 64 lower-case hexadecimal digits")
    return json_response(
        msgspec.convert(await call.context.engine.states.message(call.node, message_id), MessageStates)
    )


MESSAGE_ROUTES = (
    Route("GET", "/v1/messages/{id}", show_message, "Show the state of a message", responses={200: MessageStates}),
)
Which = Literal["open", "parked", "queued", "sent", "confirmed", "rejected", "dead", "expired", "purged", "blocked"]
After = Annotated[
    str,
    Meta(
        description="Continue here: `next` of an earlier answer.",
        max_length=400,
        extra_json_schema={"pattern": "^[0-9]{1,18}( .*)?$"},
    ),
]


class QueueQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of the list of queues."""

    after: After | None = None
    limit: Annotated[int, LIMIT] | None = None


class QueueRowsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Rows of queues."""

    node: Annotated[str, READER] | None = None
    state: Annotated[Which, Meta(description="A state, or open, or parked.")] = "open"
    after: After | None = None
    limit: Annotated[int, LIMIT] | None = None


async def list_queue_rows(call: RelayCall) -> HttpResponse:
    """List the messages in one queue, or in all queues of a mesh; a reader may list its own."""
    arguments = call.arguments(QueueRowsQuery)
    limit = arguments.limit or QUERY_MAX_LIMIT
    found = await call.context.engine.queues.rows(
        call.node,
        call.params["mesh"],
        arguments.node,
        sorted(states_named(arguments.state)),
        _read_after(arguments.after),
        limit,
    )
    following = f"{found[-1]['position']} {found[-1]['recipient']}" if len(found) == limit else None
    return json_response(QueueRows(msgspec.convert(found, list[QueueRow]), following))


class PurgeQueue(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages to purge from a queue: those named, or all in a state."""

    node: Annotated[str, READER]
    ids: list[Annotated[str, EVENT_ID]] | None = None
    state: Literal["open", "parked", "queued", "sent", "rejected", "dead"] = "open"
    via: Via | None = None


class RequeueMessages(msgspec.Struct, forbid_unknown_fields=True):
    """Which parked messages to requeue: those named, or all of the reader."""

    node: Annotated[str, READER]
    ids: list[Annotated[str, EVENT_ID]] | None = None
    via: Via | None = None


async def list_queues(call: RelayCall) -> HttpResponse:
    """List the queues of a mesh that are not empty."""
    arguments = call.arguments(QueueQuery)
    limit = arguments.limit or QUERY_MAX_LIMIT
    found = await call.context.engine.queues.overview(call.node, call.params["mesh"], arguments.after or "", limit)
    following = found[-1]["recipient"] if len(found) == limit else None
    return json_response(QueueList(msgspec.convert(found, list[Queue]), following))


async def purge_queue(call: RelayCall) -> HttpResponse:
    """Purge messages from a queue."""
    node, body = call.node, await call.body(PurgeQueue)
    states = sorted(states_named(body.state))
    purged = await call.context.engine.queues.purge(node, call.params["mesh"], body.node, body.ids, states, body.via)
    return json_response(PurgedMessages(tuple(purged)))


async def requeue_messages(call: RelayCall) -> HttpResponse:
    """Requeue parked messages, at the tail of the queue."""
    node, body = call.node, await call.body(RequeueMessages)
    queues, mesh = call.context.engine.queues, call.params["mesh"]
    requeued, no_room = await queues.requeue(node, mesh, body.node, body.ids, body.via)
    return json_response(Requeued(tuple(requeued), tuple(no_room)))


def _read_after(after: str | None) -> tuple[int, str]:
    position, _, node = (after or "0 ").partition(" ")
    if not position.isascii() or not position.isdigit() or len(position) > 18:
        raise error("parameter_invalid", name="after", reason="it is not the `next` of an earlier answer")
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
