"""The first stage: what can be judged from the bytes alone. Size, structure, id, signature.

Pure but for the time it takes, so it runs on the checkers' threads; the costly part, the signature, leaves the
interpreter lock to others.
"""

from __future__ import annotations

import structlog

from posthouse.keys.signature import verify
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, decode_event, read_event
from posthouse.model.event_structure import check_publishable, check_structure
from posthouse.relay.accept.job import Job
from posthouse.relay.store.rows import row_of

log = structlog.get_logger(__name__)


def check_job(job: Job) -> None:
    """Leave the row of the event in its job, or the refusal."""
    try:
        event, text = read_event(job.raw)
        job.event_id = event.id
        check_publishable(event)
        canonical = check_structure(event)
        verify(event.pubkey, canonical, event.sig)
        job.row = row_of(event, canonical, text)
    except PosthouseError as refusal:
        job.refusal = refusal
    except Exception as defect:
        log.exception("check_failed")
        job.refusal = error("internal", reason=type(defect).__name__)  # a job that stays away would stop its lane


def check_proof(raw: bytes) -> Event:
    """Return an event that is not published, with structure, id and signature checked."""
    event = decode_event(raw)
    verify(event.pubkey, check_structure(event), event.sig)
    return event
