"""/v1/events: publish one event or a list of them, and query what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.model.filters import Filter, filter_from_query
from posthouse.model.limits import EVENTS_PER_REQUEST, JSON_MAX_DEPTH, QUERY_MAX_LIMIT
from posthouse.model.strict_json import refuse_duplicate_keys
from posthouse.relay.answers import Accepted
from posthouse.relay.answers import Answer as Verdict
from posthouse.relay.http.call import Call
from posthouse.relay.http.pages import events_answer
from posthouse.relay.http.parameters import (
    AUTHORS,
    CURSOR,
    IDS,
    KINDS,
    LIMIT,
    MESH,
    SINCE,
    UNTIL,
    EventPage,
)
from posthouse.relay.http.problem import problem_answer
from posthouse.relay.http.route import Access, Route
from posthouse.relay.stream.connection import count_answers

MULTI_STATUS = 207


class EventList(msgspec.Struct, forbid_unknown_fields=True):
    """Events to accept in this order."""

    events: Annotated[list[Event], msgspec.Meta(min_length=1, max_length=EVENTS_PER_REQUEST)]


class Results(msgspec.Struct):
    """One result or problem for each event of a list, in order."""

    results: list[dict[str, Any]]


class EventQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which stored events, in which order, from where on."""

    ids: Annotated[str, IDS] | None = None
    authors: Annotated[str, AUTHORS] | None = None
    kinds: Annotated[str, KINDS] | None = None
    mesh: Annotated[str, MESH] | None = None
    since_ns: Annotated[int, SINCE] | None = None
    until_ns: Annotated[int, UNTIL] | None = None
    limit: Annotated[int, LIMIT] | None = None
    order: Literal["asc", "desc"] = "asc"
    cursor: Annotated[str, CURSOR] | None = None


class _RawList(msgspec.Struct, forbid_unknown_fields=True):
    events: list[msgspec.Raw]


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(_RawList)
_PAGING = ("order", "cursor")


async def publish(call: Call) -> Answer:
    """Accept one event, or each of a list: the signature says whose it is, so no token is asked for."""
    data = await call.read(call.edge.limits.body_bytes)
    events = _split(data)
    if events is None:
        verdict = await call.edge.core.accept(data)
        count_answers(call.edge, [verdict])
        return _answer(verdict)
    verdicts = await call.edge.core.accept_many(events)
    count_answers(call.edge, verdicts)
    return json_answer({"results": [_result(verdict) for verdict in verdicts]}, MULTI_STATUS)


async def query(call: Call) -> Answer:
    """Return a page of stored events in commit order."""
    paging = {name: value for name, value in call.target.query if name in _PAGING}
    if len(paging) < sum(name in _PAGING for name, _ in call.target.query):
        raise error("parameter_invalid", name="order or cursor", reason="it stands twice")
    if paging.get("order", "asc") not in ("asc", "desc"):
        raise error("parameter_invalid", name="order", reason="it is neither asc nor desc")
    wanted = filter_of(call)
    page = await call.edge.core.query(
        call.node,
        [wanted],
        cursor=paging.get("cursor"),
        limit=QUERY_MAX_LIMIT if wanted.limit is None else wanted.limit,
        order="desc" if paging.get("order") == "desc" else "asc",
    )
    return events_answer(page.events, None if page.is_end else call.edge.core.cursor(page.through_seq))


def filter_of(call: Call) -> Filter:
    """Return the filter in the query parameters."""
    wanted = filter_from_query([item for item in call.target.query if item[0] not in _PAGING])
    if wanted.limit == 0:
        raise error("filter_invalid", field="limit", reason="it is 0")
    return wanted


def _split(data: bytes) -> Sequence[bytes] | None:
    """Return the events of a list as JSON, or None when the body is meant as one event."""
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


def _answer(verdict: Verdict) -> Answer:
    if isinstance(verdict, Accepted):
        return json_answer(verdict, verdict.status)
    return problem_answer(verdict.error)


def _result(verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, Accepted):
        return {"status": verdict.status, **msgspec.to_builtins(verdict)}
    return {**verdict.error.problem(), "id": verdict.id}


ROUTES = (
    Route(
        "POST",
        "/v1/events",
        publish,
        "Publish one event, or a list of up to 500",
        Access.ANYBODY,
        bodies=(Event, EventList),
        answers={201: Accepted, 200: Accepted, 202: Accepted, MULTI_STATUS: Results},
    ),
    Route(
        "GET",
        "/v1/events",
        query,
        "Query stored events",
        query=EventQuery,
        answers={200: EventPage},
        has_tag_filters=True,
    ),
)
