"""Parameters and bodies that several routes share, as the OpenAPI document shows them; pages of stored events.

Stored events are served from the bytes that were serialized when they were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse
from posthouse.model.limits import INT64_MAX, QUERY_MAX_LIMIT
from posthouse.relay.store.event_rows import StoredEvent

_KIND = "([1-9][0-9]{0,3}|[123][0-9]{4})"
IDS = Meta(description="Event ids, comma-separated.", pattern="^[0-9a-f]{64}(,[0-9a-f]{64})*$")
AUTHORS = Meta(
    description="Node ids of authors, comma-separated.",
    pattern="^ed25519:[0-9a-f]{64}(,ed25519:[0-9a-f]{64})*$",
)
KINDS = Meta(description="Kinds, comma-separated.", pattern=f"^{_KIND}(,{_KIND})*$")
MESH = Meta(description="The name of a mesh; without it, all that you may read.", pattern="^[A-Za-z0-9_-]{1,64}$")
SINCE = Meta(description="Smallest created_at_ns.", ge=0, le=INT64_MAX)
UNTIL = Meta(description="Greatest created_at_ns.", ge=0, le=INT64_MAX)
LIMIT = Meta(description="Maximum number of results.", ge=1, le=QUERY_MAX_LIMIT)
CURSOR = Meta(
    description="Continue here: a cursor exactly as an earlier answer gave it.",
    max_length=256,
    extra_json_schema={"pattern": "^[A-Za-z0-9_-]{32}$"},
)
REPLACING_KIND = Meta(
    description="A replaceable or addressable kind.",
    ge=10_000,
    le=39_999,
    extra_json_schema={"anyOf": [{"maximum": 19_999}, {"minimum": 30_000}]},
)
NODE_ID = Meta(description="A node id.", pattern="^ed25519:[0-9a-f]{64}$")
READER = Meta(
    description="A reader: a node id, or a Pinch address in the mesh pinch.",
    pattern="^(ed25519:[0-9a-f]{64}|pinch:[1-9A-HJ-NP-Za-km-z]{40,50}@[!-?A-~]{1,255})$",
)
MESH_NAME = Meta(description="The name of a mesh.", pattern="^[A-Za-z0-9_-]{1,64}$")
MEMBER_NAME = Meta(description="The name of a member, unique in its mesh.", pattern="^[A-Za-z0-9_-]{1,64}$")
EVENT_ID = Meta(description="An event id.", pattern="^[0-9a-f]{64}$")
#: type of each path parameter
PATH_PARAMETERS: dict[str, type] = {
    "id": Annotated[str, EVENT_ID],  # type: ignore[dict-item]
    "mesh": Annotated[str, MESH_NAME],  # type: ignore[dict-item]
    "pubkey": Annotated[str, NODE_ID],  # type: ignore[dict-item]
    "kind": Annotated[int, REPLACING_KIND],  # type: ignore[dict-item]
    "resource": Annotated[str, Meta(description="The name of a lock, percent-encoded, slashes too.")],  # type: ignore[dict-item]
    "d": Annotated[str, Meta(description="The value of the d tag, percent-encoded, slashes too.")],  # type: ignore[dict-item]
    "webhook": Annotated[str, Meta(description="The id of a webhook or an incoming hook.", max_length=64)],  # type: ignore[dict-item]
    "token": Annotated[str, Meta(description="The token of an incoming hook.", max_length=200)],  # type: ignore[dict-item]
    "feed": Annotated[str, Meta(description="The name of a feed.", pattern="^[a-z][a-z0-9_]{0,63}$")],  # type: ignore[dict-item]
}


class Done(msgspec.Struct):
    """The request was carried out."""

    ok: bool = True


def stored_event(event: StoredEvent) -> bytes:
    """Return a stored event as JSON: its signed fields, its seq, and the mark of one that is suspect."""
    if event.is_suspect:
        return b'%b,"seq":%d,"suspect":true}' % (event.raw[:-1], event.seq)
    return b'%b,"seq":%d}' % (event.raw[:-1], event.seq)


def events_answer(events: Sequence[StoredEvent], cursor: str | None) -> HttpResponse:
    """Return a page of events."""
    body = b'{"events":[%b],"cursor":%b}' % (b",".join(map(stored_event, events)), msgspec.json.encode(cursor))
    return HttpResponse(200, body)
