"""Coordinates: the address `kind:pubkey:d` of a replaceable or addressable event.

The pubkey holds a colon itself and d may hold any, so the text is read from the left: kind, "ed25519",
64 digits, and all the rest is d.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.kinds import is_replacing
from posthouse.model.node import validate_node_id

_KIND = re.compile(r"[1-9][0-9]{4}")


class Coordinate(NamedTuple):
    """What names the latest of a line of events."""

    kind: int
    pubkey: str
    d: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.pubkey}:{self.d}"


def coordinate_of(event: Event) -> Coordinate:
    """Return the coordinate of an event of a replacing kind."""
    return Coordinate(event.kind, event.pubkey, event.d)


def parse_coordinate(text: str) -> Coordinate:
    """Return the coordinate in a text, or raise coordinate_invalid."""
    parts = text.split(":", 3)
    if len(parts) != 4:
        raise error("coordinate_invalid", coordinate=text, reason="it has not four parts")
    kind, scheme, digits, d = parts
    if _KIND.fullmatch(kind) is None or not is_replacing(int(kind)):
        raise error("coordinate_invalid", coordinate=text, reason="its kind is not replaceable or addressable")
    try:
        return Coordinate(int(kind), validate_node_id(f"{scheme}:{digits}"), d)
    except PosthouseError as fault:
        raise error("coordinate_invalid", coordinate=text, reason=str(fault)) from fault
