"""Settling: from a reservation to a stored message, and from a stored message to its end.

A message has exactly one bus.published record: the row's state changes with the record in one transaction, written
by the publisher, or by the server or the recovery that finds the file of a dead process. A file in new/ without a
row was put there by another program or lost by bus.db: it is adopted if it is a message for this mailbox. A file in
cur/ without a row has ended already. At its end (handled, failed, dead, withdrawn) the row, the depth, the breaker
and the record change together and the file goes after the commit: a message is recorded as handled once, and never
lost.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.admission import STORED, MailboxCopy
from posthouse.bus.maildir import Mailbox, clean_text
from posthouse.bus.results import Endpoint
from posthouse.bus.transaction import SQL, BusTransaction, EndpointCounters
from posthouse.model import breaker
from posthouse.model.clock import parse_utc
from posthouse.model.envelope import Envelope, decode_envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.reliability import CircuitBreaker
from posthouse.model.subjects import is_pattern, matches
from posthouse.model.ulid import ulid_ms, validate_ulid

if TYPE_CHECKING:
    from posthouse.bus.session import Session


EXPIRED = "message expired (TTL)"
_STORE_MAIL, _MAIL_STATE, _REMOVE_MAIL = SQL.store_mail, SQL.mail_state, SQL.remove_mail
_RESERVED = SQL.mail_reserved


class FileStatus(enum.Enum):
    """What a file in a mailbox is."""

    READY = "ready"
    """A stored message."""
    ABSENT = "absent"
    """Nothing lies there."""
    ENDED = "ended"
    """A message that has been handled; the file is a leftover."""
    STRAY = "stray"
    """No message for this mailbox, or a damaged one."""


class CloseReservation:
    """The publisher's own close of one copy, or of the dead letter it became."""

    __slots__ = ("_copy", "_earlier", "_session")

    def __init__(self, session: Session, copy: MailboxCopy) -> None:
        self._session = session
        self._copy = copy
        self._earlier: list[str] = []

    def apply(self, page: BusTransaction) -> None:
        copy = self._copy
        if copy.reason is not None:
            record_refused_letter(page, copy)
            return
        assert copy.endpoint is not None
        server = self._session.serving.server(copy.endpoint.number)
        if server is not None:
            self._earlier = server.find_earlier(page, copy)
        page.db.execute(_STORE_MAIL, (copy.number, copy.id))
        if page.db.changes() != 1:  # the server was faster
            return
        extra: dict[str, Any] = {"reserved": msgspec.Raw(copy.draft.reserved.encode())}
        if copy.draft.requeued_from is not None:
            extra["requeued_from"] = copy.draft.requeued_from
        published_to = None if copy.draft.subject == copy.subject else copy.draft.subject
        record_published(page, copy.endpoint, copy.id, copy.draft.from_, copy.data, published_to, extra)
        counters = page.endpoint(copy.number)
        if counters is not None and counters.served_by is None:
            count_stored(counters, self._session.policy.reliability.circuit_breaker, page)

    def committed(self) -> None:
        copy = self._copy
        if copy.reason is not None:
            return
        server = self._session.serving.server(copy.number)
        if server is not None:
            server.offer_own(self._earlier, copy.id, copy.data)

    def failed(self, _failure: Exception) -> bool:
        return True


def count_stored(counters: EndpointCounters, config: CircuitBreaker, page: BusTransaction) -> None:
    """Count a stored write as a success; right only for an endpoint that nobody serves."""
    if not counters.has_clean_breaker:
        counters.set_breaker(breaker.record_success(counters.breaker, config, page.boot_id))


def record_refused_letter(page: BusTransaction, copy: MailboxCopy) -> None:
    """Record the dead letter of a refused message."""
    page.db.execute(_REMOVE_MAIL, (copy.number, copy.id))
    if page.db.changes() != 1:
        return
    body: dict[str, Any] = {
        "endpoint": copy.subject if copy.endpoint is None else copy.endpoint.subject,
        "endpoint_hash": copy.hash,
        "subject": copy.subject,
        "created_at_ms": copy.draft.created_ms,
        "expires_at_ms": copy.expires_ms,
        "reason": copy.reason,
        "reserved": msgspec.Raw(copy.draft.reserved.encode()),
    }
    if copy.refusal is not None:
        body |= {"refused": copy.refusal.code.value, "budget": copy.refusal.budget}
    page.tx.append("bus.dead", actor=copy.draft.from_, ref=copy.id, body=body)


def record_published(
    page: BusTransaction,
    endpoint: Endpoint,
    id_: str,
    sender: str,
    data: bytes,
    published_to: str | None = None,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write the record of a stored message."""
    body: dict[str, Any] = {"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash, "envelope": msgspec.Raw(data)}
    if published_to is not None:
        body["published_to"] = published_to
    if extra:
        body |= extra
    page.tx.append("bus.published", actor=sender, ref=id_, body=body)


def settle_file(
    page: BusTransaction, endpoint: Endpoint, mailbox: Mailbox, box: str, name: str, instance: int
) -> tuple[FileStatus, str | None]:
    """Find out what a file is, closing its reservation if that is open; return also why it is a stray."""
    try:
        validate_ulid(name)
    except PosthouseError:
        return FileStatus.STRAY, "its name is not a message id"
    state = page.db.execute(_MAIL_STATE, (endpoint.number, name)).get
    if state == STORED:
        return FileStatus.READY, None
    try:
        data = mailbox.read(f"{box}/{name}")
    except FileNotFoundError:
        return FileStatus.ABSENT, None
    except OSError as failure:
        return FileStatus.STRAY, failure.strerror or str(failure)
    return _close_or_adopt(page, endpoint, box, name, data, state, instance)


def _close_or_adopt(
    page: BusTransaction, endpoint: Endpoint, box: str, id_: str, data: bytes, state: int | None, instance: int
) -> tuple[FileStatus, str | None]:
    envelope, reason = decode_for_endpoint(endpoint, id_, data)
    if envelope is None:
        return FileStatus.STRAY, reason
    if state is None and box == "cur":
        return FileStatus.ENDED, None
    if state is None:
        adopt_message(page, endpoint, id_, instance)
    else:
        page.db.execute(_STORE_MAIL, (endpoint.number, id_))
        if page.db.changes() != 1:
            return FileStatus.STRAY, "its publish was refused"
    reserved: str | None = page.db.execute(_RESERVED, (endpoint.number, id_)).get
    extra = None if reserved is None else {"reserved": msgspec.Raw(reserved.encode())}
    record_published(page, endpoint, id_, envelope.from_, data, envelope.published_to, extra)
    return FileStatus.READY, None


def adopt_message(page: BusTransaction, endpoint: Endpoint, id_: str, instance: int) -> None:
    """Count a message that no reservation announced."""
    page.db.execute(SQL.add_mail, (endpoint.number, id_, STORED, instance, None))
    page.raise_last_id(id_)
    counters = page.endpoint(endpoint.number)
    if counters is not None:
        counters.depth += 1
        counters.last_id = max(counters.last_id or "", id_)
        counters.is_changed = True


def decode_for_endpoint(endpoint: Endpoint, id_: str, data: bytes) -> tuple[Envelope | None, str | None]:
    """Return the message in a file of this endpoint's mailbox, or why it is none."""
    try:
        envelope = decode_envelope(data)
    except PosthouseError as fault:
        return None, f"not a message: {fault}"
    if envelope.id != id_:
        return None, f"the message inside has the id {envelope.id}"
    if envelope.subject != endpoint.subject and not (
        is_pattern(endpoint.subject) and matches(envelope.subject, endpoint.subject)
    ):
        return None, f"the message inside is for {envelope.subject}"
    return envelope, None


_REMOVE_ENDED_MAIL = SQL.remove_mail


class EndMessage:
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

    def apply(self, page: BusTransaction) -> None:
        number = self._endpoint.number
        page.db.execute(_REMOVE_ENDED_MAIL, (number, self._id))
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

    def _tell_breaker(self, page: BusTransaction, succeeded: bool) -> None:
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


class WithdrawReservation:
    """A reservation whose file could not be written: the place is given back, the breaker hears of it."""

    __slots__ = ("_copy", "_session")

    def __init__(self, session: Session, copy: MailboxCopy) -> None:
        self._session = session
        self._copy = copy

    def apply(self, page: BusTransaction) -> None:
        copy = self._copy
        page.db.execute(_REMOVE_ENDED_MAIL, (copy.number, copy.id))
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


def dead_letter_body(envelope: Envelope | None, endpoint: Endpoint, id_: str, reason: str) -> dict[str, Any]:
    """Return what the record of a dead letter says beyond its endpoint."""
    created_ms = ulid_ms(id_) if envelope is None else parse_utc(envelope.created_at) // MILLISECOND_NS
    return {
        "subject": endpoint.subject if envelope is None else envelope.subject,
        "created_at_ms": created_ms,
        "expires_at_ms": created_ms if envelope is None else envelope.budget.ttl,
        "reason": clean_text(reason),
    }
