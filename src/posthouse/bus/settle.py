"""Closing reservations: the one bus.published record of a stored message, written by whoever finds it first.

The publisher closes its own; a server or sweep that finds the file of a process that died closes it instead. The
row's state changes with the record in one transaction, so there is exactly one. A file in new/ without a row is
mail that another program put there, or that bus.db has lost: it is adopted when it is a message for this mailbox. A
file in cur/ without a row has ended already; only its removal was interrupted.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.draft import Copy
from posthouse.bus.mailbox import Mailbox
from posthouse.bus.page import EndpointCounters, Page
from posthouse.bus.reserve import STORED
from posthouse.bus.results import Endpoint
from posthouse.bus.statements import SQL
from posthouse.model import breaker
from posthouse.model.envelope import Envelope, decode_envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.ids import validate_ulid
from posthouse.model.reliability import CircuitBreaker
from posthouse.model.subjects import is_pattern, matches

if TYPE_CHECKING:
    from posthouse.bus.session import Session

_STORE_MAIL, _MAIL_STATE, _REMOVE_MAIL = SQL.store_mail, SQL.mail_state, SQL.remove_mail
_RESERVED = SQL.mail_reserved


class Verdict(enum.Enum):
    """What a file in a mailbox is."""

    READY = "ready"
    """A stored message."""
    ABSENT = "absent"
    """Nothing lies there."""
    ENDED = "ended"
    """A message that has been handled; the file is a leftover."""
    STRAY = "stray"
    """No message for this mailbox, or a damaged one."""


class Close:
    """The publisher's own close of one copy, or of the dead letter it became."""

    __slots__ = ("_copy", "_earlier", "_session")

    def __init__(self, session: Session, copy: Copy) -> None:
        self._session = session
        self._copy = copy
        self._earlier: list[str] = []

    def apply(self, page: Page) -> None:
        copy = self._copy
        if copy.reason is not None:
            close_letter(page, copy)
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


def count_stored(counters: EndpointCounters, config: CircuitBreaker, page: Page) -> None:
    """Count a stored write as a success; right only for an endpoint that nobody serves."""
    if not counters.has_clean_breaker:
        counters.set_breaker(breaker.record_success(counters.breaker, config, page.boot_id))


def close_letter(page: Page, copy: Copy) -> None:
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
    page: Page,
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


def settle(
    page: Page, endpoint: Endpoint, mailbox: Mailbox, box: str, name: str, instance: int
) -> tuple[Verdict, str | None]:
    """Find out what a file is, closing its reservation if that is open; return also why it is a stray."""
    try:
        validate_ulid(name)
    except PosthouseError:
        return Verdict.STRAY, "its name is not a message id"
    state = page.db.execute(_MAIL_STATE, (endpoint.number, name)).get
    if state == STORED:
        return Verdict.READY, None
    try:
        data = mailbox.read(f"{box}/{name}")
    except FileNotFoundError:
        return Verdict.ABSENT, None
    except OSError as failure:
        return Verdict.STRAY, failure.strerror or str(failure)
    return _take_in(page, endpoint, box, name, data, state, instance)


def _take_in(
    page: Page, endpoint: Endpoint, box: str, id_: str, data: bytes, state: int | None, instance: int
) -> tuple[Verdict, str | None]:
    envelope, reason = open_envelope(endpoint, id_, data)
    if envelope is None:
        return Verdict.STRAY, reason
    if state is None and box == "cur":
        return Verdict.ENDED, None
    if state is None:
        adopt(page, endpoint, id_, instance)
    else:
        page.db.execute(_STORE_MAIL, (endpoint.number, id_))
        if page.db.changes() != 1:
            return Verdict.STRAY, "its publish was refused"
    reserved: str | None = page.db.execute(_RESERVED, (endpoint.number, id_)).get
    extra = None if reserved is None else {"reserved": msgspec.Raw(reserved.encode())}
    record_published(page, endpoint, id_, envelope.from_, data, envelope.published_to, extra)
    return Verdict.READY, None


def adopt(page: Page, endpoint: Endpoint, id_: str, instance: int) -> None:
    """Count a message that no reservation announced."""
    page.db.execute(SQL.add_mail, (endpoint.number, id_, STORED, instance, None))
    page.raise_last_id(id_)
    counters = page.endpoint(endpoint.number)
    if counters is not None:
        counters.depth += 1
        counters.last_id = max(counters.last_id or "", id_)
        counters.is_changed = True


def open_envelope(endpoint: Endpoint, id_: str, data: bytes) -> tuple[Envelope | None, str | None]:
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
