"""/v1/journal: the relay's own history, for its administrators."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import CURSOR, LIMIT
from posthouse.relay.http.route import Route


class JournalQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of the journal."""

    after: Annotated[str, CURSOR] | None = None
    types: Annotated[str, Meta(description="Types of records, comma-separated.", max_length=2_000)] | None = None
    limit: Annotated[int, LIMIT] | None = None


class RecordBody(msgspec.Struct):
    """One record; docs/reference/journal.md lists the types and their bodies."""

    seq: int
    at_ns: int
    type: str
    mesh: str | None
    actor: str | None
    ref: str | None
    body: dict[str, Any]


class JournalPage(msgspec.Struct):
    """Records in seq order; go on with the cursor, also when there is nothing yet."""

    records: list[RecordBody]
    cursor: str | None


async def journal(call: Call) -> Answer:
    """Return records after a cursor."""
    given = call.arguments(JournalQuery)
    types = None if given.types is None else given.types.split(",")
    records, cursor = await call.edge.core.journal(
        call.node, after=given.after, types=types, limit=given.limit or QUERY_MAX_LIMIT
    )
    bodies = [RecordBody(r.seq, r.at_ns, r.type, r.mesh, r.actor, r.ref, r.decoded_body()) for r in records]
    return json_answer(JournalPage(bodies, cursor))


ROUTES = (
    Route(
        "GET",
        "/v1/journal",
        journal,
        "Read the journal (administrators)",
        query=JournalQuery,
        answers={200: JournalPage},
    ),
)
