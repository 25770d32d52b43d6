"""/v1/events/address/{kind}/{pubkey}/{d}: the latest event of a coordinate, and the older ones.

d is one path segment, percent-encoded; where a client cannot send it so (it is empty, `.` or `..`), it is given as ?d=
and the segment is left out. Then a last segment `history` asks for the history, whatever d is.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.answer import Answer
from posthouse.model.coordinate import Coordinate
from posthouse.model.errors import error
from posthouse.model.kinds import is_replacing
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.model.node import validate_node_id
from posthouse.relay.http.call import Call
from posthouse.relay.http.pages import events_answer, stored_event
from posthouse.relay.http.parameters import CURSOR, LIMIT, EventPage, StoredEventBody
from posthouse.relay.http.route import Route

_KIND = re.compile(r"[1-9][0-9]{4}")
HISTORY = "history"


class AddressQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The d tag, where the path does not hold it."""

    d: Annotated[str, Meta(description="The value of the d tag, instead of the path's last segment.")] | None = None


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a history."""

    limit: Annotated[int, LIMIT] | None = None
    cursor: Annotated[str, CURSOR] | None = None


class NamedHistoryQuery(HistoryQuery, forbid_unknown_fields=True):
    """Part of the history of the d given here."""

    d: Annotated[str, Meta(description="The value of the d tag, when the path ends in /history.")] | None = None


async def latest_by_parameter(call: Call) -> Answer:
    """Return the latest event of the coordinate whose d is given as ?d=, or is empty."""
    return await _latest(call, call.arguments(AddressQuery).d or "")


async def latest(call: Call) -> Answer:
    """Return the latest event of the coordinate; `history` with ?d= is the history of that d."""
    if call.params["d"] == HISTORY and any(name == "d" for name, _ in call.target.query):
        arguments = call.arguments(NamedHistoryQuery)
        return await _history(call, arguments.d or "", arguments)
    call.arguments(NoQuery)
    return await _latest(call, call.params["d"])


async def history(call: Call) -> Answer:
    """Return every event of the coordinate, in commit order."""
    return await _history(call, call.params["d"], call.arguments(HistoryQuery))


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


async def _latest(call: Call, d: str) -> Answer:
    return Answer(200, stored_event(await call.edge.core.address(call.node, _coordinate(call, d))))


async def _history(call: Call, d: str, arguments: HistoryQuery) -> Answer:
    core = call.edge.core
    limit = arguments.limit or QUERY_MAX_LIMIT
    page = await core.history(call.node, _coordinate(call, d), cursor=arguments.cursor, limit=limit)
    return events_answer(page.events, None if page.is_end else core.cursor(page.through_seq))


def _coordinate(call: Call, d: str) -> Coordinate:
    kind = call.params["kind"]
    if _KIND.fullmatch(kind) is None or not is_replacing(int(kind)):
        raise error("coordinate_invalid", coordinate=kind[:80], reason="its kind is not replaceable or addressable")
    return Coordinate(int(kind), validate_node_id(call.params["pubkey"]), d)


_PATH = "/v1/events/address/{kind}/{pubkey}"
ROUTES = (
    Route(
        "GET",
        _PATH,
        latest_by_parameter,
        "Read the latest event of a coordinate, d as a parameter",
        query=AddressQuery,
        answers={200: StoredEventBody},
    ),
    Route("GET", _PATH + "/{d}", latest, "Read the latest event of a coordinate", answers={200: StoredEventBody}),
    Route(
        "GET",
        _PATH + "/{d}/history",
        history,
        "Read all events of a coordinate",
        query=HistoryQuery,
        answers={200: EventPage},
    ),
)
