"""The way of Pinch envelopes to the writer: what one turn of the event loop brings is one unit of work.

Jobs are written in the order they came, and readers hear of them in commit order, because results are taken where the
writer's answers arrive and nowhere later. Jobs belong to the relay, not to the connection that brought them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import structlog

from posthouse.model.errors import PosthouseError
from posthouse.model.node import PINCH_MESH
from posthouse.relay.deliver.mail import Mail
from posthouse.relay.deliver.mailbox import Offer
from posthouse.relay.deliver.mailboxes import Mailboxes
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.pinch.accept import Postings
from posthouse.relay.pinch.confirm import confirm
from posthouse.relay.pinch.jobs import Confirming, Job, Outcome, Posting
from posthouse.relay.store.interface import Unit

log = structlog.get_logger(__name__)


class Written(NamedTuple):
    """What one unit of work did."""

    outcomes: list[Outcome]
    offers: dict[str, list[Offer]]
    mail: Mail


class Gathering:
    """Jobs that wait for the end of this turn, and those on their way."""

    def __init__(self, mailboxes: Mailboxes) -> None:
        self._mailboxes = mailboxes
        self._jobs: list[Job] = []
        self._on_the_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, job: Job) -> None:
        """Have a job done; its `tell` is called with the outcome."""
        if not self._jobs:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._jobs.append(job)
        self._on_the_way += 1
        self._idle.clear()

    async def drain(self) -> None:
        """Wait until everything is committed or refused; before the store closes."""
        await self._idle.wait()

    def _hand_over(self) -> None:
        jobs, self._jobs = self._jobs, []
        self._write(jobs)

    def _write(self, jobs: Sequence[Job]) -> None:
        settings = self._mailboxes.settings
        try:
            future = self._mailboxes.store.submit(
                lambda unit: write_jobs(unit, settings, jobs), size=sum(job.size for job in jobs)
            )
        except PosthouseError as refusal:
            self._refuse(jobs, refusal)
        else:
            future.add_done_callback(partial(self._written, jobs))

    def _written(self, jobs: Sequence[Job], future: asyncio.Future[Written]) -> None:
        failure = future.exception()
        if failure is None:
            written = future.result()
            self._mailboxes.take_mail(written.mail)
            for address, offers in written.offers.items():
                self._mailboxes.offer((PINCH_MESH, address), offers)
            self._finish(jobs, written.outcomes)
        elif isinstance(failure, PosthouseError):
            self._refuse(jobs, failure)
        elif len(jobs) > 1:  # one trips over a defect: the others need not
            for job in jobs:
                self._write([job])
        else:
            log.error("pinch_not_written", exc_info=failure)
            self._finish(jobs, [Outcome.BUSY])

    def _refuse(self, jobs: Sequence[Job], refusal: PosthouseError) -> None:
        log.warning("pinch_not_written", reason=str(refusal), jobs=len(jobs))
        self._finish(jobs, [Outcome.BUSY] * len(jobs))

    def _finish(self, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        self._on_the_way -= len(jobs)
        if not self._on_the_way:
            self._idle.set()
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.tell(outcome)


def write_jobs(unit: Unit, settings: DeliverySettings, jobs: Sequence[Job]) -> Written:
    """Do jobs inside the transaction."""
    mail = Mail()
    postings = Postings(unit, settings, [job for job in jobs if isinstance(job, Posting)], mail)
    outcomes = [
        confirm(unit, settings, job, mail) if isinstance(job, Confirming) else postings.claim(job) for job in jobs
    ]
    postings.write()
    return Written(outcomes, postings.offers, mail)
