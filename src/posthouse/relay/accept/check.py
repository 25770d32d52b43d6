"""The first stage: what can be judged from the bytes alone. Size, structure, id, signature.

Pure but for the time it takes, so it runs on the checkers' threads; the costly part, the signature, leaves the
interpreter lock to others.
"""

from __future__ import annotations

from posthouse.keys.signature import verify
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event, decode_event, encode_event
from posthouse.model.event_structure import check_publishable, check_structure
from posthouse.model.limits import INT64_MAX
from posthouse.relay.accept.job import Job
from posthouse.relay.accept.record import describe
from posthouse.relay.store.interface import EventRow
from posthouse.relay.store.terms import event_address, event_terms


def check_job(job: Job) -> None:
    """Leave the row of the event in its job, or the refusal."""
    try:
        event = decode_event(job.raw)
        job.event_id = event.id
        job.row = _row(event)
    except PosthouseError as refusal:
        job.refusal = refusal


def check_proof(raw: bytes) -> Event:
    """Return an event that is not published, with structure, id and signature checked."""
    event = decode_event(raw)
    verify(event.pubkey, check_structure(event), event.sig)
    return event


def _row(event: Event) -> EventRow:
    check_publishable(event)
    canonical = check_structure(event)
    verify(event.pubkey, canonical, event.sig)
    record_type, record_body, recipient = describe(event, len(canonical))
    mesh, address, expiration_s = event.mesh, event_address(event), event.expiration_s
    return EventRow(
        event=event,
        raw=encode_event(event),
        size=len(canonical),
        mesh=mesh,
        recipient=recipient,
        expiration_s=None if expiration_s is None else min(expiration_s, INT64_MAX),
        terms=event_terms(event, mesh, address),
        address=address,
        record_type=record_type,
        record_body=record_body,
    )
