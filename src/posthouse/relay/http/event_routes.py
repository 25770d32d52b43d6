"""/v1/events: publish events, query and count stored ones, read one, read a coordinate and its history.

/v1/pointers: the newest event under the fence of a resource, over all authors.
d is one percent-encoded path segment. A client that cannot send it that way (because it is empty, `.` or `..`) gives it
as ?d= and omits the segment; then a last segment `history` always asks for the history.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response, problem_response
from posthouse.http.router import Route
from posthouse.model.api import Count, EventPage, StoredEventBody
from posthouse.model.errors import error
from posthouse.model.event import Coordinate, Event, is_event_id, is_replacing
from posthouse.model.filters import Filter, filter_from_query
from posthouse.model.limits import EVENTS_PER_REQUEST, JSON_MAX_DEPTH, QUERY_MAX_LIMIT
from posthouse.model.node import DEFAULT_MESH, validate_node_id
from posthouse.model.strict_json import refuse_duplicate_keys
from posthouse.relay.context import RelayCall
from posthouse.relay.http import schemas
from posthouse.relay.wire.accept_results import Accepted, ReplacingAccepted
from posthouse.relay.wire.accept_results import Answer as Verdict
from posthouse.relay.wire.lock_operations import Resource

MULTI_STATUS = 207


class EventList(msgspec.Struct, forbid_unknown_fields=True):
    """Events to accept in this order."""

    events: Annotated[list[Event], msgspec.Meta(min_length=1, max_length=EVENTS_PER_REQUEST)]


class Results(msgspec.Struct):
    """One result or problem for each event of a list, in order."""

    results: list[dict[str, Any]]


class FilterQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Selects stored events."""

    ids: Annotated[str, schemas.IDS] | None = None
    authors: Annotated[str, schemas.AUTHORS] | None = None
    kinds: Annotated[str, schemas.KINDS] | None = None
    mesh: Annotated[str, schemas.MESH] | None = None
    since_ns: Annotated[int, schemas.SINCE] | None = None
    until_ns: Annotated[int, schemas.UNTIL] | None = None


class EventQuery(FilterQuery, forbid_unknown_fields=True):
    """Selects stored events, their order, and the cursor to start after."""

    limit: Annotated[int, schemas.LIMIT] | None = None
    order: Literal["asc", "desc"] = "asc"
    cursor: Annotated[str, schemas.CURSOR] | None = None


class _RawList(msgspec.Struct, forbid_unknown_fields=True):
    events: list[msgspec.Raw]


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(_RawList)
_QUERY_PAGING = ("order", "cursor")


async def publish_events(call: RelayCall) -> HttpResponse:
    """Accept one event, or each of a list; the signature names the author, so no token is required."""
    data = await call.read(call.context.limits.body_bytes)
    events = _split(data)
    if events is None:
        return _answer(await call.context.engine.accept(data, call.payer))
    verdicts = await call.context.engine.accept_many(events, call.payer)
    return json_response({"results": [_result(verdict) for verdict in verdicts]}, MULTI_STATUS)


async def query_events(call: RelayCall) -> HttpResponse:
    """Return a page of stored events in commit order."""
    paging = {name: value for name, value in call.target.query if name in _QUERY_PAGING}
    if len(paging) < sum(name in _QUERY_PAGING for name, _ in call.target.query):
        raise error("parameter_invalid", name="order or cursor", reason="it is given twice")
    if paging.get("order", "asc") not in ("asc", "desc"):
        raise error("parameter_invalid", name="order", reason="it is neither asc nor desc")
    wanted = filter_of(call)
    page = await call.context.engine.query(
        call.node,
        [wanted],
        cursor=paging.get("cursor"),
        limit=QUERY_MAX_LIMIT if wanted.limit is None else wanted.limit,
        order="desc" if paging.get("order") == "desc" else "asc",
    )
    return schemas.events_answer(page.events, None if page.is_end else call.context.engine.cursor(page.through_seq))


def filter_of(call: RelayCall) -> Filter:
    """Return the filter in the query parameters."""
    wanted = filter_from_query([item for item in call.target.query if item[0] not in _QUERY_PAGING])
    if wanted.limit == 0:
        raise error("filter_invalid", field="limit", reason="it is 0")
    return wanted


def _split(data: bytes) -> Sequence[bytes] | None:
    """Return the events of a list as JSON, or None if the body is one event."""
    try:
        fields = _OBJECT.decode(data)
        if "events" not in fields:
            return None
        if data.count(b'"events"') > 1 or b"\\u" in data:
            refuse_duplicate_keys(data)
        events = [bytes(event) for event in _LIST.decode(data).events]
    except RecursionError as fault:
        raise error("json_too_deep", limit=JSON_MAX_DEPTH) from fault
    except msgspec.ValidationError as fault:
        raise error("body_invalid", reason=str(fault)) from fault
    except ValueError as fault:
        raise error("json_invalid", reason=str(fault)) from fault
    if not 1 <= len(events) <= EVENTS_PER_REQUEST:
        raise error("body_invalid", reason=f"a list has 1 to {EVENTS_PER_REQUEST} events, not {len(events)}")
    return events


def _answer(verdict: Verdict) -> HttpResponse:
    if isinstance(verdict, Accepted):
        return json_response(verdict, verdict.status)
    return problem_response(verdict.error)


def _result(verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, Accepted):
        return {"status": verdict.status, **msgspec.to_builtins(verdict)}
    return {**verdict.error.problem(), "id": verdict.id}


EVENT_ROUTES = (
    Route(
        "POST",
        "/v1/events",
        publish_events,
        "Publish one event, or a list of up to 500",
        is_public=True,
        bodies=(Event, EventList),
        responses={
            201: (Accepted, ReplacingAccepted),
            200: (Accepted, ReplacingAccepted),
            202: Accepted,
            MULTI_STATUS: Results,
        },
    ),
    Route(
        "GET",
        "/v1/events",
        query_events,
        "Query stored events",
        query=EventQuery,
        responses={200: EventPage},
        has_tag_filters=True,
    ),
)
_COUNT_REFUSED = frozenset({"order", "cursor", "limit"})


async def count_events(call: RelayCall) -> HttpResponse:
    """Count the events that the filter matches and the caller may read."""
    if refused := _COUNT_REFUSED & {name for name, _ in call.target.query}:
        raise error("parameter_unknown", name=min(refused))
    return json_response(Count(await call.context.engine.count(call.node, [filter_of(call)])))


COUNT_ROUTES = (
    Route(
        "GET",
        "/v1/events/count",
        count_events,
        "Count stored events",
        query=FilterQuery,
        responses={200: Count},
        has_tag_filters=True,
    ),
)


async def read_event(call: RelayCall) -> HttpResponse:
    """Return an event and its seq."""
    event_id = call.params["id"]
    if not is_event_id(event_id):
        raise error("id_invalid", id=event_id[:80], reason="an event id is 64 lower-case hexadecimal digits")
    return HttpResponse(200, schemas.stored_event(await call.context.engine.event(call.node, event_id)))


ONE_EVENT_ROUTES = (Route("GET", "/v1/events/{id}", read_event, "Read one event", responses={200: StoredEventBody}),)
_KIND = re.compile(r"[1-9][0-9]{4}")
HISTORY = "history"


class AddressQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The d tag, if it is not in the path."""

    d: Annotated[str, Meta(description="The value of the d tag, instead of the path's last segment.")] | None = None


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a history."""

    limit: Annotated[int, schemas.LIMIT] | None = None
    cursor: Annotated[str, schemas.CURSOR] | None = None


class NamedHistoryQuery(HistoryQuery, forbid_unknown_fields=True):
    """Part of the history of the d given here."""

    d: Annotated[str, Meta(description="The value of the d tag, when the path ends in /history.")] | None = None


async def latest_by_parameter(call: RelayCall) -> HttpResponse:
    """Return the latest event of the coordinate whose d is given as ?d= or is empty."""
    return await _latest(call, call.arguments(AddressQuery).d or "")


async def latest(call: RelayCall) -> HttpResponse:
    """Return the latest event of the coordinate; `history` with ?d= is the history of that d."""
    if call.params["d"] == HISTORY and any(name == "d" for name, _ in call.target.query):
        arguments = call.arguments(NamedHistoryQuery)
        return await _history(call, arguments.d or "", arguments)
    call.arguments(NoQuery)
    return await _latest(call, call.params["d"])


async def history(call: RelayCall) -> HttpResponse:
    """Return every event of the coordinate, in commit order."""
    return await _history(call, call.params["d"], call.arguments(HistoryQuery))


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


async def _latest(call: RelayCall, d: str) -> HttpResponse:
    return HttpResponse(200, schemas.stored_event(await call.context.engine.address(call.node, _coordinate(call, d))))


async def _history(call: RelayCall, d: str, arguments: HistoryQuery) -> HttpResponse:
    engine = call.context.engine
    limit = arguments.limit or QUERY_MAX_LIMIT
    page = await engine.history(call.node, _coordinate(call, d), cursor=arguments.cursor, limit=limit)
    return schemas.events_answer(page.events, None if page.is_end else engine.cursor(page.through_seq))


def _coordinate(call: RelayCall, d: str) -> Coordinate:
    kind = call.params["kind"]
    if _KIND.fullmatch(kind) is None or not is_replacing(int(kind)):
        raise error("coordinate_invalid", coordinate=kind[:80], reason="its kind is not replaceable or addressable")
    return Coordinate(int(kind), validate_node_id(call.params["pubkey"]), d)


_MAY_BE_EMPTY = frozenset({"d"})
_ADDRESS_PATH = "/v1/events/address/{kind}/{pubkey}"
ADDRESS_ROUTES = (
    Route(
        "GET",
        _ADDRESS_PATH,
        latest_by_parameter,
        "Read the latest event of a coordinate, d as a parameter",
        query=AddressQuery,
        responses={200: StoredEventBody},
    ),
    Route(
        "GET",
        _ADDRESS_PATH + "/{d}",
        latest,
        "Read the latest event of a coordinate",
        responses={200: StoredEventBody},
        may_be_empty=_MAY_BE_EMPTY,
    ),
    Route(
        "GET",
        _ADDRESS_PATH + "/{d}/history",
        history,
        "Read all events of a coordinate",
        query=HistoryQuery,
        responses={200: EventPage},
        may_be_empty=_MAY_BE_EMPTY,
    ),
)


class PointerQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The mesh of a resource."""

    mesh: Annotated[str, schemas.MESH] | None = None


class NamedPointerQuery(PointerQuery, forbid_unknown_fields=True, kw_only=True):
    """A resource by its name, which may be one that a path cannot carry."""

    resource: Resource


async def pointer(call: RelayCall) -> HttpResponse:
    """Return the newest event under the fence of a resource."""
    return await _pointer(call, call.params["resource"], call.arguments(PointerQuery).mesh)


async def pointer_by_parameter(call: RelayCall) -> HttpResponse:
    """Return the newest event under the fence of the resource given as ?resource=."""
    arguments = call.arguments(NamedPointerQuery)
    return await _pointer(call, arguments.resource, arguments.mesh)


async def _pointer(call: RelayCall, resource: str, mesh: str | None) -> HttpResponse:
    found = await call.context.engine.pointer(call.node, mesh or DEFAULT_MESH, resource)
    return HttpResponse(200, schemas.stored_event(found))


POINTER_ROUTES = (
    Route(
        "GET",
        "/v1/pointers/{resource}",
        pointer,
        "Read the newest event under the fence of a resource",
        query=PointerQuery,
        responses={200: StoredEventBody},
    ),
    Route(
        "GET",
        "/v1/pointers",
        pointer_by_parameter,
        "Read the newest event under the fence of a resource, given as ?resource=",
        query=NamedPointerQuery,
        responses={200: StoredEventBody},
    ),
)
