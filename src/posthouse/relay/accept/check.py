"""The first stage: what can be judged from the bytes alone. Size, structure, id, signature.

Pure but for the time it takes, so it runs on the checkers' threads; the costly part, the signature, leaves the
interpreter lock to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from posthouse.keys.signature import verify
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, decode_event
from posthouse.model.event_structure import check_publishable, check_structure
from posthouse.relay.accept.job import Job
from posthouse.relay.store.rows import row_of

log = structlog.get_logger(__name__)


class _Check:
    """One event on its way from bytes to its row."""

    __slots__ = ("_canonical", "_event", "job")

    def __init__(self, job: Job) -> None:
        self.job = job

    def read(self) -> None:
        self._event = event = decode_event(self.job.raw)
        self.job.event_id = event.id
        check_publishable(event)
        self._canonical = check_structure(event)

    def verify(self) -> None:
        verify(self._event.pubkey, self._canonical, self._event.sig)

    def describe(self) -> None:
        self.job.row = row_of(self._event, self._canonical)


def check_jobs(jobs: Sequence[Job]) -> None:
    """Leave the row of its event in each job, or the refusal.

    All jobs take a step before the next step begins. Between two signatures there is then hardly any Python: threads that
    verify seldom meet one that holds the interpreter lock, and being woken for it costs as much as half a signature.
    """
    checks = [_Check(job) for job in jobs]
    for step in (_Check.read, _Check.verify, _Check.describe):
        for check in checks:
            if check.job.refusal is None:
                _take(step, check)


def _take(step: Callable[[_Check], None], check: _Check) -> None:
    try:
        step(check)
    except PosthouseError as refusal:
        check.job.refusal = refusal
    except Exception as defect:
        log.exception("check_failed")  # a job that stays away would stop its lane
        check.job.refusal = error("internal", reason=type(defect).__name__)


def check_proof(raw: bytes) -> Event:
    """Return an event that is not published, with structure, id and signature checked."""
    event = decode_event(raw)
    verify(event.pubkey, check_structure(event), event.sig)
    return event
