"""/v1/meshes/{mesh}/queues: what waits for whom, for admins of the mesh; and what they may do about it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.model.errors import error
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.relay.deliver.queues import states_named
from posthouse.relay.deliver.rows import State
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import EVENT_ID, LIMIT, READER
from posthouse.relay.http.route import Route

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


async def overview(call: Call) -> Answer:
    """List the queues of a mesh in which something is."""
    given = call.arguments(QueueQuery)
    limit = given.limit or QUERY_MAX_LIMIT
    found = await call.edge.core.queues.overview(call.node, call.params["mesh"], given.after or "", limit)
    following = found[-1]["recipient"] if len(found) == limit else None
    return json_answer(QueueList(msgspec.convert(found, list[Queue]), following))


async def rows(call: Call) -> Answer:
    """List the messages in one queue, or in all of a mesh; a reader may look at its own."""
    given = call.arguments(QueueRowsQuery)
    limit = given.limit or QUERY_MAX_LIMIT
    found = await call.edge.core.queues.rows(
        call.node, call.params["mesh"], given.node, sorted(states_named(given.state)), _place(given.after), limit
    )
    following = f"{found[-1]['position']} {found[-1]['recipient']}" if len(found) == limit else None
    return json_answer(QueueRows(msgspec.convert(found, list[QueueRow]), following))


async def purge(call: Call) -> Answer:
    """Take messages out of a queue for good."""
    node, given = call.node, await call.body(PurgeQueue)
    states = sorted(states_named(given.state))
    purged = await call.edge.core.queues.purge(node, call.params["mesh"], given.node, given.ids, states)
    return json_answer(PurgedMessages(purged))


async def requeue(call: Call) -> Answer:
    """Open parked messages again, at the tail of the queue."""
    node, given = call.node, await call.body(RequeueMessages)
    requeued, no_room = await call.edge.core.queues.requeue(node, call.params["mesh"], given.node, given.ids)
    return json_answer(Requeued(requeued, no_room))


def _place(after: str | None) -> tuple[int, str]:
    position, _, node = (after or "0 ").partition(" ")
    if not position.isascii() or not position.isdigit() or len(position) > 18:
        raise error("parameter_invalid", name="after", reason="it is not what a former answer gave")
    return int(position), node


_PATH = "/v1/meshes/{mesh}/queues"
ROUTES = (
    Route("GET", _PATH, overview, "List queues (admins)", query=QueueQuery, answers={200: QueueList}),
    Route(
        "GET", f"{_PATH}/rows", rows, "List messages in queues (admins)", query=QueueRowsQuery, answers={200: QueueRows}
    ),
    Route(
        "POST", f"{_PATH}/purge", purge, "Purge a queue (admins)", bodies=(PurgeQueue,), answers={200: PurgedMessages}
    ),
    Route(
        "POST",
        f"{_PATH}/requeue",
        requeue,
        "Requeue parked messages (admins)",
        bodies=(RequeueMessages,),
        answers={200: Requeued},
    ),
)
