"""How a message ends: handled, failed, dead or withdrawn; its row, the mailbox's depth and the record in one go.

The file goes after the commit. A crash in between leaves a file without a row, which the next server removes; so a
message is recorded as handled once, and never lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.draft import Copy
from posthouse.bus.letters import clean_text
from posthouse.bus.page import Page
from posthouse.bus.results import Endpoint
from posthouse.bus.statements import SQL
from posthouse.model import breaker
from posthouse.model.envelope import Envelope
from posthouse.model.ids import ulid_ms
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.timestamps import parse_utc

if TYPE_CHECKING:
    from posthouse.bus.session import Session

_REMOVE_MAIL = SQL.remove_mail


class End:
    """The end of one message in one mailbox."""

    __slots__ = (
        "_actor",
        "_body",
        "_endpoint",
        "_id",
        "_is_known",
        "_is_spare",
        "_path",
        "_session",
        "_succeeded",
        "_then",
        "_type",
    )

    def __init__(
        self,
        session: Session,
        endpoint: Endpoint,
        id_: str,
        path: str,
        record: str,
        *,
        actor: str | None,
        body: dict[str, Any] | None = None,
        succeeded: bool | None = None,
        is_known: bool = True,
        is_spare: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._session = session
        self._endpoint = endpoint
        self._id = id_
        #: where the file lies in the mailbox
        self._path = path
        self._type = record
        self._actor = actor
        self._body: dict[str, Any] = {"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash} | (body or {})
        #: what it tells the breaker, if anything
        self._succeeded = succeeded
        #: whether a row should be there; without one nothing is recorded
        self._is_known = is_known
        #: whether the file may be written over for another message
        self._is_spare = is_spare
        self._then = then

    def apply(self, page: Page) -> None:
        number = self._endpoint.number
        page.db.execute(_REMOVE_MAIL, (number, self._id))
        was_there = page.db.changes() == 1
        counters = page.endpoint(number)
        if counters is not None:
            if was_there:
                counters.depth = max(0, counters.depth - 1)
                counters.is_changed = True
            if self._succeeded is not None:
                self._tell_breaker(page, self._succeeded)
        if was_there or not self._is_known:
            if self._succeeded is False:
                self._body["boot_ns"] = page.boot_ns
            page.tx.append(self._type, actor=self._actor, ref=self._id, body=self._body)

    def committed(self) -> None:
        mailbox = self._session.find_mailbox(self._endpoint.hash)
        if mailbox is not None and not (
            self._is_spare and self._session.spares.put(self._endpoint.hash, mailbox, self._path)
        ):
            mailbox.remove(self._path)
        if self._then is not None:
            self._then()

    def failed(self, _failure: Exception) -> bool:
        return True

    def _tell_breaker(self, page: Page, succeeded: bool) -> None:
        config = self._session.policy.reliability.circuit_breaker
        counters = page.endpoint(self._endpoint.number)
        assert counters is not None
        if succeeded:
            if counters.has_clean_breaker:
                return
            state = breaker.record_success(counters.breaker, config, page.boot_id)
        else:
            state = breaker.record_failure(counters.breaker, config, page.boot_ns, page.boot_id)
        counters.set_breaker(state)


class Withdraw:
    """A reservation whose file could not be written: the place is given back, the breaker hears of it."""

    __slots__ = ("_copy", "_session")

    def __init__(self, session: Session, copy: Copy) -> None:
        self._session = session
        self._copy = copy

    def apply(self, page: Page) -> None:
        copy = self._copy
        page.db.execute(_REMOVE_MAIL, (copy.number, copy.id))
        counters = page.endpoint(copy.number) if page.db.changes() == 1 and copy.reason is None else None
        if counters is None:
            return
        counters.depth = max(0, counters.depth - 1)
        counters.is_changed = True
        config = self._session.policy.reliability.circuit_breaker
        counters.set_breaker(breaker.record_failure(counters.breaker, config, page.boot_ns, page.boot_id))
        assert copy.endpoint is not None
        body: dict[str, Any] = {"endpoint": copy.endpoint.subject, "endpoint_hash": copy.hash, "boot_ns": page.boot_ns}
        body["reserved"] = msgspec.Raw(copy.draft.reserved.encode())
        page.tx.append("bus.withdrawn", actor=copy.draft.from_, ref=copy.id, body=body)

    def committed(self) -> None:
        """Nothing is left to do."""

    def failed(self, _failure: Exception) -> bool:
        return True


def letter_body(envelope: Envelope | None, endpoint: Endpoint, id_: str, reason: str) -> dict[str, Any]:
    """Return what the record of a dead letter says beyond its endpoint."""
    created_ms = ulid_ms(id_) if envelope is None else parse_utc(envelope.created_at) // MILLISECOND_NS
    return {
        "subject": endpoint.subject if envelope is None else envelope.subject,
        "created_at_ms": created_ms,
        "expires_at_ms": created_ms if envelope is None else envelope.budget.ttl,
        "reason": clean_text(reason),
    }
