"""Operations: health, info, metrics, the cluster, the journal, exports of feeds, pruning, deletion by administrators.

The header Posthouse-Cursor of an export is the cursor of the next request, Posthouse-Extent the range of the journal.
pyarrow is imported when it is first needed. The columns of a feed are a contract: names, order and types are those of
its view.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from posthouse.extras import install_hint
from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.journal.cursor import Extent
from posthouse.model import limits
from posthouse.model.api import (
    ArchivedRange,
    ClusterState,
    Compacted,
    Deleted,
    DeleteRequest,
    JournalPage,
    JournalRecord,
    Pruned,
)
from posthouse.model.errors import error
from posthouse.model.filters import Filter, filter_from_json
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.model.metric import CONTENT_TYPE
from posthouse.relay.context import METRICS_PATH, RelayCall, features_of
from posthouse.relay.http.schemas import CURSOR, LIMIT
from posthouse.relay.ops.deletion import DeletionOrder
from posthouse.relay.ops.housekeeping import compact
from posthouse.version import __version__


class Health(msgspec.Struct):
    """The state of the process."""

    status: str = "ok"


async def healthz(call: RelayCall) -> HttpResponse:
    """Answer as long as the event loop runs; the status is `damaged` once the relay has met a damaged page."""
    return json_response(Health("damaged" if call.context.engine.damage else "ok"))


async def readyz(call: RelayCall) -> HttpResponse:
    """Answer 200 while events are accepted and read; 503 if the disk is full, the store damaged or the relay behind."""
    call.context.engine.require_current()
    state = call.context.engine.state
    if state != "open":
        raise error("relay_not_ready", reason=f"its store is {state}")
    return json_response(Health("ready"))


HEALTH_ROUTES = (
    Route(
        "GET",
        "/healthz",
        healthz,
        "Check that the process runs",
        is_public=True,
        is_vital=True,
        responses={200: Health},
    ),
    Route(
        "GET",
        "/readyz",
        readyz,
        "Check that events are accepted",
        is_public=True,
        is_vital=True,
        responses={200: Health},
    ),
)


class Info(msgspec.Struct):
    """The public description of a relay."""

    name: str
    version: str
    #: the relay's node id
    relay: str
    epoch: str
    now_ns: int
    #: true if a test steps the clocks
    is_test_clock: bool
    limits: dict[str, int]
    #: features: true, or their parameters
    features: dict[str, Any]


async def show_info(call: RelayCall) -> HttpResponse:
    """Describe this relay."""
    context = call.context
    info = Info(
        name="posthouse",
        version=__version__,
        relay=context.relay,
        epoch=context.engine.store.epoch,
        now_ns=context.clock.wall_ns(),
        is_test_clock=hasattr(context.clock, "offsets"),
        limits=wire_limits(call),
        features=features_of(context),
    )
    return json_response(info)


def wire_limits(call: RelayCall) -> dict[str, int]:
    """Return the limits that clients must observe."""
    edge, deliveries = call.context.limits, call.context.engine.settings.deliveries
    return {
        "event_bytes": limits.EVENT_MAX_CANONICAL_BYTES,
        "tags": limits.EVENT_MAX_TAGS,
        "tag_value_bytes": limits.TAG_VALUE_MAX_BYTES,
        "created_at_ahead_s": limits.CREATED_AT_MAX_AHEAD_NS // limits.SECOND_NS,
        "created_at_behind_s": call.context.engine.settings.known_ids_ns // limits.SECOND_NS,
        "events_per_request": limits.EVENTS_PER_REQUEST,
        "query_limit": limits.QUERY_MAX_LIMIT,
        "filter_values": limits.FILTER_MAX_VALUES,
        "filters_per_subscription": limits.FILTERS_PER_SUBSCRIPTION,
        "subscriptions_per_connection": edge.subscriptions_per_connection,
        "body_bytes": edge.body_bytes,
        "frame_bytes": edge.frame_bytes,
        "commands_per_frame": edge.commands_per_frame,
        "buffer_events": edge.buffer_events,
        "buffer_bytes": edge.buffer_bytes,
        "challenge_s": limits.CHALLENGE_TTL_S,
        "token_s": limits.TOKEN_TTL_S,
        "message_body_bytes": limits.BODY_MAX_BYTES,
        "confirmation_ids": limits.CONFIRMATION_MAX_IDS,
        "receive_window": limits.RECEIVE_WINDOW_MAX,
        "queue_messages": deliveries.queue_max,
        "queue_ttl_s": round(deliveries.queue_ttl_s),
    }


INFO_ROUTES = (Route("GET", "/v1/info", show_info, "Describe this relay", is_public=True, responses={200: Info}),)


async def show_metrics(call: RelayCall) -> HttpResponse:
    """Show the metrics to the relay's admins and to the holder of the metrics token."""
    if not call.has_metrics_token:
        call.context.engine.require_admin(call.node)
    return await render_metrics(call)


async def render_metrics(call: RelayCall) -> HttpResponse:
    """Show the metrics; docs/reference/metrics.md explains them."""
    await call.context.engine.sweeper.count()
    await call.context.engine.retention.count()
    return HttpResponse(200, call.context.meters.render(), CONTENT_TYPE)


async def show_cluster(call: RelayCall) -> HttpResponse:
    """Show the relays of the store, their beats, and which of them leads."""
    call.context.engine.require_admin(call.node)
    cluster = call.context.engine.cluster
    return json_response(ClusterState(None, None, None, []) if cluster is None else cluster.describe())


CLUSTER_ROUTES = (
    Route(
        "GET",
        "/v1/cluster",
        show_cluster,
        "Show the relays of the store (administrators)",
        responses={200: ClusterState},
    ),
)
METRICS_ROUTES = (
    Route(
        "GET",
        METRICS_PATH,
        show_metrics,
        "Show metrics (administrators, or the metrics token)",
        responses={200: None},
        media_type="text/plain",
    ),
)
#: of the listener that serves only metrics
LOCAL_METRICS_ROUTES = (Route("GET", METRICS_PATH, render_metrics, "Show metrics", is_public=True),)


class JournalQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of the journal."""

    after: Annotated[str, CURSOR] | None = None
    types: Annotated[str, Meta(description="Types of records, comma-separated.", max_length=2_000)] | None = None
    limit: Annotated[int, LIMIT] | None = None
    order: Annotated[Literal["asc", "desc"], Meta(description="desc: newest first, before a cursor.")] = "asc"
    before: Annotated[str, CURSOR] | None = None


async def read_journal(call: RelayCall) -> HttpResponse:
    """Return records after a cursor in seq order, or the newest ones first; continue with the cursor of the page."""
    arguments, engine = call.arguments(JournalQuery), call.context.engine
    types = None if arguments.types is None else arguments.types.split(",")
    limit = arguments.limit or QUERY_MAX_LIMIT
    cursor: str | None
    if arguments.order == "desc":
        if arguments.after is not None:
            raise error("parameter_invalid", name="after", reason="newest first continues with before")
        records, cursor = await engine.newest_journal(call.node, before=arguments.before, types=types, limit=limit)
    elif arguments.before is not None:
        raise error("parameter_invalid", name="before", reason="oldest first continues with after")
    else:
        records, cursor = await engine.journal(call.node, after=arguments.after, types=types, limit=limit)
    bodies = [JournalRecord(r.seq, r.at_ns, r.type, r.mesh, r.actor, r.ref, r.decoded_body()) for r in records]
    return json_response(JournalPage(bodies, cursor))


JOURNAL_ROUTES = (
    Route(
        "GET",
        "/v1/journal",
        read_journal,
        "Read the journal (administrators)",
        query=JournalQuery,
        responses={200: JournalPage},
    ),
)
MEDIA_TYPE = "application/vnd.apache.arrow.stream"
CURSOR_HEADER = "Posthouse-Cursor"
EXTENT_HEADER = "Posthouse-Extent"
MAX_ROWS = 10_000  # of one answer: about 10 MB of ordinary events
_DEFAULT_ROWS = 1_000
_LOCK_INTEGERS = ("token", "tree", "lease_ms", "wait_ms", "boot_ns", "deadline_boot_ns", "former_token")
_INTEGERS = frozenset(
    {"seq", "at_ns", "kind", "created_at_ns", "expiration_s", "former_deadline_boot_ns", *_LOCK_INTEGERS}
)


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a feed."""

    after: Annotated[str, CURSOR] | None = None
    limit: Annotated[int, Meta(description="How many rows at most.", ge=1, le=MAX_ROWS)] | None = None


async def export_feed(call: RelayCall) -> HttpResponse:
    """Return rows of a feed after a cursor."""
    arguments = call.arguments(ExportQuery)
    extent = await call.context.engine.store.extent()  # read before the rows, so that they contain all that it promises
    columns, rows, cursor = await call.context.engine.feed(
        call.node, call.params["feed"], after=arguments.after, limit=arguments.limit or _DEFAULT_ROWS
    )
    return HttpResponse(
        200, _encode_arrow(columns, rows), MEDIA_TYPE, {CURSOR_HEADER: cursor, EXTENT_HEADER: _describe_extent(extent)}
    )


def _describe_extent(extent: Extent) -> str:
    return msgspec.json.encode(asdict(extent)).decode()


def _encode_arrow(columns: list[str], rows: list[tuple[Any, ...]]) -> bytes:
    try:
        pyarrow: Any = import_module("pyarrow")
    except ModuleNotFoundError as missing:
        hint = f"Where the relay runs: {install_hint('pipeline')}"
        raise error("extra_missing", library="pyarrow", hint=hint) from missing
    schema = pyarrow.schema([(name, pyarrow.int64() if name in _INTEGERS else pyarrow.string()) for name in columns])
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    batch = pyarrow.record_batch([list(column) for column in values], schema=schema)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


EXPORT_ROUTES = (
    Route(
        "GET",
        "/v1/export/{feed}",
        export_feed,
        "Export a feed as an Arrow IPC stream (administrators)",
        query=ExportQuery,
        responses={200: None},
        media_type=MEDIA_TYPE,
    ),
)


async def prune_journal(call: RelayCall) -> HttpResponse:
    """Compute the digests and delete the range if they equal those given; refuse otherwise."""
    archived = await call.body(ArchivedRange)
    pruned, oldest_seq = await call.context.engine.prune(call.node, archived)
    return json_response(Pruned(pruned.records, pruned.emptied, oldest_seq))


PRUNE_ROUTES = (
    Route(
        "POST",
        "/v1/admin/prune",
        prune_journal,
        "Delete an archived prefix of the journal (administrators)",
        bodies=(ArchivedRange,),
        responses={200: Pruned},
    ),
)


async def delete_events(call: RelayCall) -> HttpResponse:
    """Erase events that meet every condition, up to a bound of work; repeat it with `through_seq` as `after_seq`."""
    node = call.node
    body = await call.body(DeleteRequest)
    order = DeletionOrder(node, _conditions(body), body.reason, body.dry_run, body.after_seq)
    result = await call.context.engine.delete(call.context.key, order)
    head = (await call.context.engine.store.extent()).head
    return json_response(Deleted(result.matched, result.erased, head, result.through_seq))


def _conditions(body: DeleteRequest) -> list[Filter]:
    """Return the conditions as filters; a request without any is refused, because it would mean everything."""
    plain: dict[str, Any] = {
        "ids": None if body.ids is None else list(body.ids),
        "authors": None if body.author is None else [body.author],
        "mesh": body.mesh,
        "until_ns": None if body.before_ns is None else body.before_ns - 1,
    }
    given = {name: value for name, value in plain.items() if value is not None}
    filters = [filter_from_json(each) for each in (given, body.filter) if each]
    if not filters:
        raise error("parameter_invalid", name="author", reason="a deletion needs at least one condition")
    return filters


async def compact_store(call: RelayCall) -> HttpResponse:
    """Give free space of the store back to the file system, in small steps that leave room for other work."""
    engine = call.context.engine
    engine.require_admin(call.node)
    before, after = await compact(engine.store)
    return json_response(Compacted(before.total, after.total))


DELETE_ROUTES = (
    Route(
        "POST",
        "/v1/admin/compact",
        compact_store,
        "Give free space of the store back (administrators)",
        responses={200: Compacted},
    ),
    Route(
        "POST",
        "/v1/admin/delete",
        delete_events,
        "Delete events of any author (administrators)",
        bodies=(DeleteRequest,),
        responses={200: Deleted},
    ),
)
