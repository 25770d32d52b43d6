"""/v1/events/count: how many stored events match a filter."""

from __future__ import annotations

from typing import Annotated

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.model.errors import error
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import AUTHORS, IDS, KINDS, MESH, SINCE, UNTIL, Count
from posthouse.relay.http.resources.events import filter_of
from posthouse.relay.http.route import Route

_PAGING = frozenset({"order", "cursor", "limit"})


class CountQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which stored events."""

    ids: Annotated[str, IDS] | None = None
    authors: Annotated[str, AUTHORS] | None = None
    kinds: Annotated[str, KINDS] | None = None
    mesh: Annotated[str, MESH] | None = None
    since_ns: Annotated[int, SINCE] | None = None
    until_ns: Annotated[int, UNTIL] | None = None


async def count(call: Call) -> Answer:
    """Count the events that the filter matches and the asker may read."""
    if given := _PAGING & {name for name, _ in call.target.query}:
        raise error("parameter_unknown", name=min(given))
    return json_answer(Count(await call.edge.core.count(call.node, [filter_of(call)])))


ROUTES = (
    Route(
        "GET",
        "/v1/events/count",
        count,
        "Count stored events",
        query=CountQuery,
        answers={200: Count},
        has_tag_filters=True,
    ),
)
