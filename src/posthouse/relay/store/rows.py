"""Working out what is written of an event; all of it follows from the event, so that a check can compare."""

from __future__ import annotations

from posthouse.model.event import Event, encode_event
from posthouse.model.limits import INT64_MAX
from posthouse.relay.store.interface import EventRow
from posthouse.relay.store.record import describe
from posthouse.relay.store.terms import event_address, event_terms


def row_of(event: Event, canonical: bytes, text: bytes | None = None) -> EventRow:
    """Return everything that is written of an event, all of it worked out from the event itself.

    Whoever has its canonical bytes has them already; the same holds for `text`, which is encode_event's.
    """
    record_type, record_body, recipient, matter = describe(event, len(canonical))
    mesh, address, expiration_s = event.mesh, event_address(event), event.expiration_s
    return EventRow(
        event=event,
        raw=encode_event(event) if text is None else text,
        size=len(canonical),
        mesh=mesh,
        recipient=recipient,
        expiration_s=None if expiration_s is None else min(expiration_s, INT64_MAX),
        terms=event_terms(event, mesh, address),
        address=address,
        record_type=record_type,
        record_body=record_body,
        matter=matter,
    )
