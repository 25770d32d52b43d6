"""Requests and answers of mirrors: which events of a mesh, the events, and messages that compare two relays.

A mirror selects events by author, kind and creation time, which a relay keeps even after the content is gone. A
condition on tags is refused, because two relays could disagree about an event that one of them has swept. If you change
a struct: 1. docs/protocol.md, 2. docs/openapi.json.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from posthouse.model.errors import error
from posthouse.model.filters import Filter, filter_from_json

PUSH_MAX_EVENTS = 200
FETCH_MAX_IDS = 200


def mirror_filter(mesh: str, value: dict[str, Any] | None) -> Filter:
    """Return the filter of a mirror of a mesh; raise filter_invalid for conditions that mirrors do not have."""
    wanted = filter_from_json(value or {})
    for name, is_given in (("ids", wanted.ids), ("limit", wanted.limit), ("#", wanted.tags)):
        if is_given:
            raise error(
                "filter_invalid", field=name, reason="a mirror selects by authors, kinds, since_ns and until_ns"
            )
    if wanted.mesh not in (None, mesh):
        raise error("filter_invalid", field="mesh", reason=f"the mirror is of the mesh {mesh}")
    return replace(wanted, mesh=mesh)


class MirrorEvents(msgspec.Struct, forbid_unknown_fields=True):
    """Events of another relay, as their authors signed them."""

    events: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=PUSH_MAX_EVENTS)]


class MirrorRefusal(msgspec.Struct, frozen=True):
    """An event that was not accepted."""

    #: None if the event could not be read
    id: str | None
    code: str


class MirrorPushed(msgspec.Struct, frozen=True):
    """What became of pushed events."""

    stored: int
    #: the relay had them already
    known: int
    refused: list[MirrorRefusal]


class MirrorRead(msgspec.Struct, forbid_unknown_fields=True):
    """A request for events of a mesh: a filter, and the cursor to start after."""

    filter: dict[str, Any] | None = None
    after: Annotated[str, Meta(max_length=256)] | None = None
    wait_s: Annotated[float, Meta(ge=0, le=20)] = 0.0


class MirrorPage(msgspec.Struct):
    """Events in commit order; events without content are left out."""

    events: list[msgspec.Raw]
    cursor: str
    #: whether there are no later events at present
    is_end: bool


class MirrorIds(msgspec.Struct, forbid_unknown_fields=True):
    """Ids of events."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=FETCH_MAX_IDS)]


class MirrorFetched(msgspec.Struct):
    """The events with these ids, and the ids whose content is gone."""

    events: list[msgspec.Raw]
    gone: list[str]


class MirrorCompare(msgspec.Struct, forbid_unknown_fields=True):
    """A message of range fingerprints about the events that match a filter."""

    #: base64
    message: bytes
    filter: dict[str, Any] | None = None


class MirrorAnswer(msgspec.Struct):
    """The answer to a message of range fingerprints."""

    #: base64
    message: bytes
