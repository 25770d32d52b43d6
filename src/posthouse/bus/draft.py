"""A publish on its way: what was asked, and the copies and refusals it has become so far."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from posthouse.bus.results import Endpoint, PublishResult, Reason, Rejection
from posthouse.model.budget import Budget, BudgetCeiling, GivenBudget
from posthouse.model.pressure import Pressure


class Refusal(NamedTuple):
    """A rule that kept a message from its mailbox."""

    code: Reason
    budget: Budget


class Copy:
    """A message for one mailbox, or the dead letter it became instead."""

    __slots__ = ("data", "draft", "endpoint", "expires_ms", "id", "previous_id", "reason", "refusal", "subject")

    def __init__(
        self,
        draft: Draft,
        endpoint: Endpoint | None,
        id_: str,
        subject: str,
        data: bytes,
        expires_ms: int,
        *,
        reason: str | None = None,
        refusal: Refusal | None = None,
        previous_id: str | None = None,
    ) -> None:
        self.draft = draft
        #: None: unrouted
        self.endpoint = endpoint
        self.id = id_
        self.subject = subject
        #: the envelope as it is stored
        self.data = data
        self.expires_ms = expires_ms
        #: why it is a dead letter, or None
        self.reason = reason
        #: which rule made it one, and the budget it had
        self.refusal = refusal
        #: the id reserved for the endpoint before this one
        self.previous_id = previous_id

    @property
    def number(self) -> int:
        return 0 if self.endpoint is None else self.endpoint.number

    @property
    def hash(self) -> str:
        return "unrouted" if self.endpoint is None else self.endpoint.hash


class Draft:
    """One call of publish."""

    __slots__ = (
        "ceiling",
        "copies",
        "created_ms",
        "failure",
        "from_",
        "future",
        "given",
        "inherited",
        "letters",
        "message_id",
        "payload",
        "pressure",
        "rejected",
        "reply_to",
        "requeued_from",
        "reserved",
        "stored",
        "subject",
        "warnings",
    )

    def __init__(
        self,
        subject: str,
        payload: msgspec.Raw,
        from_: str,
        future: asyncio.Future[PublishResult],
        *,
        reply_to: str | None = None,
        inherited: Budget | None = None,
        given: GivenBudget | Budget | None = None,
        requeued_from: str | None = None,
        ceiling: BudgetCeiling | None = None,
    ) -> None:
        self.subject = subject
        self.payload = payload
        self.from_ = from_
        self.future = future
        self.reply_to = reply_to
        self.inherited = inherited
        self.given = given
        #: the dead letter this is made from: then no new letter is written and no rate is charged
        self.requeued_from = requeued_from
        #: of mail that comes over the mesh: its own bounds instead of the bus's, and no rate
        self.ceiling = ceiling
        self.reset()

    def reset(self) -> None:
        """Forget what was decided, before it is decided again."""
        self.message_id = ""
        #: [seq of the journal, boot time in ns, 1 if it counts for the rate] when the rules decided, as JSON
        self.reserved = ""
        self.created_ms = 0
        self.copies: list[Copy] = []
        self.letters: list[Copy] = []
        self.stored = 0
        self.rejected: list[Rejection] = []
        self.pressure: dict[str, float] = {}
        self.warnings: list[tuple[str, Pressure]] = []
        self.failure: OSError | None = None

    def reject(self, endpoint_hash: str, subject: str, reason: Reason, text: str) -> None:
        self.rejected.append(Rejection(endpoint_hash, subject, reason, text))

    def result(self) -> PublishResult:
        return PublishResult(self.message_id, self.stored, tuple(self.rejected), self.pressure)
