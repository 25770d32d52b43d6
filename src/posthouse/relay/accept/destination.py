"""Where an event goes, as far as its order matters: what a refused event of a list holds back behind it."""

from __future__ import annotations

from posthouse.model.kinds import is_replacing
from posthouse.relay.store.interface import EventRow

Destination = tuple[str, str, str]


def destination_of(row: EventRow) -> Destination:
    """Return the line of a replacing event, else its first topic or recipient, else its mesh."""
    event = row.event
    if is_replacing(event.kind):
        return row.mesh, str(event.kind), f"{event.pubkey}:{event.d}"
    for tag in event.tags:
        if len(tag) > 1 and tag[0] in ("t", "p"):
            return row.mesh, tag[0], tag[1]
    return row.mesh, "", ""
