"""Settling: from a reservation to a stored message, and from a stored message to its end.

A message has exactly one bus.published record: the row's state changes with the record in one transaction, written
by the publisher, or by the server or the recovery that finds the file of a dead process. A file without a row is a
leftover if the journal has the message's end; otherwise another program put it there or bus.db has lost the row, and
it is adopted if it is a message for this mailbox. At its end (handled, failed, dead, withdrawn) the row, the depth,
the breaker and the record change together and the file goes after the commit: a message is recorded as handled once,
and never lost.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from posthouse.bus.admission import MailboxCopy
from posthouse.bus.core import Core
from posthouse.bus.letter_counts import LetterKind, add_letter, drop_excess
from posthouse.bus.maildir import Mailbox, clean_text, encode_dead_letter, write_dead_letter
from posthouse.bus.results import Endpoint
from posthouse.bus.transaction import SQL, BusTransaction, EndpointCounters, MailState
from posthouse.model import breaker
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.envelope import Envelope, HandlerError, decode_envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.reliability import CircuitBreaker
from posthouse.model.subjects import is_pattern, matches
from posthouse.model.ulid import ulid_ms, validate_ulid

EXPIRED = "message expired (TTL)"
ENDS = {"bus.handled", "bus.failed", "bus.dead"}


class _Place(msgspec.Struct):
    """The fields of a record that name its endpoint."""

    endpoint: str


_decode_place = msgspec.json.Decoder(_Place).decode
_encode = msgspec.json.Encoder().encode


def is_message_id(name: str) -> bool:
    """Return True if a file of this name can be a message."""
    try:
        validate_ulid(name)
    except PosthouseError:
        return False
    return True


def endpoint_fields(endpoint: Endpoint) -> dict[str, Any]:
    """Return the fields that name the endpoint in a record."""
    return {"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash}


# the publisher's side


def reserve_copy(core: Core, tx: BusTransaction, copy: MailboxCopy) -> None:
    """Add the row of a copy, or of the dead letter it became, whose file is written after the commit."""
    copy.is_reserved = True
    state = MailState.RESERVED if copy.reason is None else MailState.REFUSED
    reserved = _encode(copy.draft.reserved).decode()
    tx.db.execute(SQL.add_mail, (copy.number, copy.id, int(state), core.instance.number, reserved))


def record_stored(core: Core, tx: BusTransaction, copy: MailboxCopy) -> list[str]:
    """Record a copy, or the dead letter it became, whose file the publisher has stored.

    Return the ids of earlier unqueued messages, if this process serves the endpoint.
    """
    if copy.endpoint is None or copy.reason is not None:
        _record_refused(core, tx, copy)
        return []
    server = core.servers.get(copy.number)
    earlier = [] if server is None else server.find_earlier(tx, copy.id, copy.previous_id)
    if copy.is_reserved:
        tx.db.execute(SQL.store_mail, (copy.number, copy.id))
        if tx.db.changes() != 1:  # a server found the file first
            return earlier
    else:
        tx.db.execute(SQL.add_mail, (copy.number, copy.id, int(MailState.STORED), core.instance.number, None))
    extra: dict[str, Any] = {"reserved": copy.draft.reserved}
    if copy.draft.requeued_from is not None:
        extra["requeued_from"] = copy.draft.requeued_from
    published_to = None if copy.draft.subject == copy.subject else copy.draft.subject
    _record_published(tx, copy.endpoint, copy.id, copy.draft.from_, copy.data, published_to, extra)
    counters = tx.endpoint(copy.number)
    if counters is not None and not counters.is_served:
        _record_success(tx, counters, core.policy.reliability.circuit_breaker)
    return earlier


def withdraw_copy(core: Core, tx: BusTransaction, copy: MailboxCopy) -> None:
    """Take back a copy whose file could not be written, and count the failure."""
    if copy.is_reserved:
        counters = release_reservation(tx, copy.number, copy.id, is_counted=copy.reason is None)
    else:
        counters = tx.endpoint(copy.number)
        if counters is not None:
            counters.remove_message()
    if counters is None or copy.endpoint is None:
        return
    config = core.policy.reliability.circuit_breaker
    counters.set_breaker(breaker.record_failure(counters.breaker, config, tx.boot_ns, tx.boot_id))
    body = endpoint_fields(copy.endpoint) | {"boot_ns": tx.boot_ns, "reserved": copy.draft.reserved}
    tx.journal.append("bus.withdrawn", actor=copy.draft.from_, ref=copy.id, body=body)


def release_reservation(
    tx: BusTransaction, number: int, id_: str, *, is_counted: bool = True
) -> EndpointCounters | None:
    """Delete the row of a message that has no file; return the endpoint's counters if the depth has changed."""
    tx.db.execute(SQL.remove_mail, (number, id_))
    counters = tx.endpoint(number) if tx.db.changes() == 1 and is_counted else None
    if counters is not None:
        counters.remove_message()
    return counters


def _record_refused(core: Core, tx: BusTransaction, copy: MailboxCopy) -> None:
    tx.db.execute(SQL.remove_mail, (copy.number, copy.id))
    if tx.db.changes() != 1:
        return
    add_letter(tx, copy.number, copy.id, LetterKind.REFUSED, copy.file_bytes)
    body: dict[str, Any] = {
        "endpoint": copy.subject if copy.endpoint is None else copy.endpoint.subject,
        "endpoint_hash": copy.hash,
        "subject": copy.subject,
        "created_at_ms": copy.draft.created_ms,
        "expires_at_ms": copy.expires_ms,
        "reason": copy.reason,
        "reserved": copy.draft.reserved,
    }
    if copy.refusal is not None:
        body |= {"refused": copy.refusal.code.value, "budget": copy.refusal.budget}
        if copy.draft.in_reply_to is not None:
            body["in_reply_to"] = copy.draft.in_reply_to
    tx.journal.append("bus.dead", actor=copy.draft.from_, ref=copy.id, body=body)
    drop_excess(core, tx, copy.number, copy.hash)


def _record_published(
    tx: BusTransaction,
    endpoint: Endpoint,
    id_: str,
    sender: str,
    data: bytes,
    published_to: str | None,
    extra: dict[str, Any],
) -> None:
    body = endpoint_fields(endpoint)
    body["envelope"] = msgspec.Raw(data)
    if published_to is not None:
        body["published_to"] = published_to
    tx.journal.append("bus.published", actor=sender, ref=id_, body=body | extra)
    tx.published_id = id_


def _record_success(tx: BusTransaction, counters: EndpointCounters, config: CircuitBreaker) -> None:
    if not counters.has_clean_breaker:
        counters.set_breaker(breaker.record_success(counters.breaker, config, tx.boot_id))


# files that a server or the recovery finds


class FileStatus(enum.Enum):
    """What a file in a mailbox is."""

    READY = "ready"
    """A stored message."""
    ABSENT = "absent"
    """There is no such file."""
    ENDED = "ended"
    """A message that has been handled; the file is a leftover."""
    INVALID = "invalid"
    """Not a message for this mailbox, or a damaged one."""
    CLAIMED = "claimed"
    """A stored message that another process works on."""


class Settled(msgspec.Struct, frozen=True):
    """The kind of a file that was read; `reason` says why it is invalid."""

    status: FileStatus
    reason: str = ""
    #: how often the message was delivered before and not finished
    attempts: int = 0


def settle_file(
    tx: BusTransaction, endpoint: Endpoint, mailbox: Mailbox, folder: str, name: str, instance: int
) -> Settled:
    """Classify a file, closing its reservation if that is open and adopting it if it has none."""
    if not is_message_id(name):
        return Settled(FileStatus.INVALID, "its name is not a message id")
    row: Any = tx.db.execute(SQL.mail_row, (endpoint.number, name)).fetchone()
    state, claimed_by, attempts = row or (None, None, 0)
    if state == MailState.STORED:
        is_ready = claimed_by is None or claimed_by == instance
        return Settled(FileStatus.READY if is_ready else FileStatus.CLAIMED, attempts=attempts)
    try:
        data = mailbox.read(f"{folder}/{name}")
    except FileNotFoundError:
        return Settled(FileStatus.ABSENT)
    except OSError as failure:
        return Settled(FileStatus.INVALID, failure.strerror or str(failure))
    return _close_or_adopt(tx, endpoint, name, data, state, instance)


def _close_or_adopt(
    tx: BusTransaction, endpoint: Endpoint, id_: str, data: bytes, state: int | None, instance: int
) -> Settled:
    envelope, reason = decode_for_endpoint(endpoint, id_, data)
    if envelope is None:
        return Settled(FileStatus.INVALID, reason)
    if state is None:
        last_record = find_last_record(tx, endpoint, id_)
        if last_record in ENDS:
            return Settled(FileStatus.ENDED)
        _adopt_message(tx, endpoint, id_, instance)
        if last_record is not None:
            body = endpoint_fields(endpoint) | {"attempt": 0, "adopted": True}
            tx.journal.append("bus.redelivered", actor=envelope.from_, ref=id_, body=body)
            return Settled(FileStatus.READY)
    else:
        tx.db.execute(SQL.store_mail, (endpoint.number, id_))
        if tx.db.changes() != 1:
            return Settled(FileStatus.INVALID, "its publish was refused")
    reserved: str | None = tx.db.execute(SQL.mail_reserved, (endpoint.number, id_)).get
    extra = {} if reserved is None else {"reserved": msgspec.Raw(reserved.encode())}
    _record_published(tx, endpoint, id_, envelope.from_, data, envelope.published_to, extra)
    return Settled(FileStatus.READY)


def find_last_record(tx: BusTransaction, endpoint: Endpoint, id_: str) -> str | None:
    """Return the type of the last journal record about a message in this mailbox; None if there is none."""
    tx.journal.flush()
    first = tx.db.execute(SQL.published_seq, (id_,)).get
    if first is None:
        oldest_ns = tx.db.execute(SQL.journal_oldest).get
        if oldest_ns is None or ulid_ms(id_) * MILLISECOND_NS >= oldest_ns:
            return None
        first = 0  # its publish may have been pruned
    found = None
    rows: Any = tx.db.execute(SQL.records_of_message, (first, id_))
    for type_, body in rows:
        if _decode_place(body.encode()).endpoint == endpoint.subject:
            found = type_
    return found


def _adopt_message(tx: BusTransaction, endpoint: Endpoint, id_: str, instance: int) -> None:
    tx.db.execute(SQL.add_mail, (endpoint.number, id_, int(MailState.STORED), instance, None))
    tx.raise_last_id(id_)
    counters = tx.endpoint(endpoint.number)
    if counters is not None:
        counters.add_message(id_)


def decode_for_endpoint(endpoint: Endpoint, id_: str, data: bytes) -> tuple[Envelope | None, str]:
    """Return the message in a file of this endpoint's mailbox, or None and why it is not one."""
    try:
        envelope = decode_envelope(data)
    except PosthouseError as failure:
        return None, f"not a message: {failure}"
    if envelope.id != id_:
        return None, f"the message inside has the id {envelope.id}"
    if envelope.subject != endpoint.subject and not (
        is_pattern(endpoint.subject) and matches(envelope.subject, endpoint.subject)
    ):
        return None, f"the message inside is for {envelope.subject}"
    return envelope, ""


# the end of a message


class EndMessage:
    """Ledger operation: the end of one message in one mailbox."""

    __slots__ = (
        "_actor",
        "_body",
        "_core",
        "_endpoint",
        "_id",
        "_is_spare",
        "_letter_bytes",
        "_needs_row",
        "_outcome",
        "_path",
        "_type",
    )

    def __init__(
        self,
        core: Core,
        endpoint: Endpoint,
        id_: str,
        path: str,
        record: str,
        *,
        actor: str | None,
        body: dict[str, Any] | None = None,
        outcome: bool | None = None,
        needs_row: bool = True,
        is_spare: bool = False,
        letter_bytes: int | None = None,
    ) -> None:
        self._core = core
        self._endpoint = endpoint
        self._id = id_
        #: path of the file inside the mailbox
        self._path = path
        self._type = record
        self._actor = actor
        self._body = endpoint_fields(endpoint) if body is None else body
        #: success or failure for the breaker; None does not count
        self._outcome = outcome
        #: record nothing if the message has no row: it has ended before
        self._needs_row = needs_row
        #: keep the file, to be overwritten with another message
        self._is_spare = is_spare
        #: size of the dead letter that the message leaves
        self._letter_bytes = letter_bytes

    def apply(self, tx: BusTransaction) -> None:
        tx.db.execute(SQL.remove_mail, (self._endpoint.number, self._id))
        had_row = tx.db.changes() == 1
        counters = tx.endpoint(self._endpoint.number)
        if counters is not None:
            if had_row:
                counters.remove_message()
            if self._outcome is False or (self._outcome and not counters.has_clean_breaker):
                self._update_breaker(tx, counters, self._outcome)
        if had_row or not self._needs_row:
            if self._outcome is False:
                self._body["boot_ns"] = tx.boot_ns
            if self._letter_bytes is not None:
                add_letter(tx, self._endpoint.number, self._id, LetterKind.ACCEPTED, self._letter_bytes)
            tx.journal.append(self._type, actor=self._actor, ref=self._id, body=self._body)

    def on_committed(self) -> None:
        try:
            mailbox = self._core.directory.recent_mailbox(self._endpoint.hash)
        except FileNotFoundError:
            return
        if not (self._is_spare and self._core.spares.keep(self._endpoint.hash, mailbox, self._path)):
            mailbox.remove(self._path)

    def on_failed(self, _failure: Exception) -> bool:
        return True

    def _update_breaker(self, tx: BusTransaction, counters: EndpointCounters, is_success: bool) -> None:
        config = self._core.policy.reliability.circuit_breaker
        if is_success:
            _record_success(tx, counters, config)
        else:
            counters.set_breaker(breaker.record_failure(counters.breaker, config, tx.boot_ns, tx.boot_id))


def write_message_dead_letter(
    core: Core,
    endpoint: Endpoint,
    mailbox: Mailbox,
    path: str,
    envelope: Envelope,
    data: bytes,
    reason: str,
    *,
    record: str = "bus.dead",
    outcome: bool | None = None,
    raised: HandlerError | None = None,
) -> EndMessage:
    """Write the dead letter of a message and return the operation that then ends the message."""
    dead_letter = encode_dead_letter(data, reason, format_utc(core.clock.wall_ns()), raised=raised)
    write_dead_letter(mailbox, envelope.id, core.instance.name, dead_letter, sync=core.is_power_safe)
    body = dead_letter_body(endpoint, envelope, envelope.id, reason)
    return EndMessage(
        core,
        endpoint,
        envelope.id,
        path,
        record,
        actor=envelope.from_,
        body=body,
        outcome=outcome,
        letter_bytes=len(dead_letter),
    )


def dead_letter_body(endpoint: Endpoint, envelope: Envelope | None, id_: str, reason: str) -> dict[str, Any]:
    """Return the body of the record of a dead letter; `envelope` is None if the file held no message."""
    created_ms = ulid_ms(id_) if envelope is None else parse_utc(envelope.created_at) // MILLISECOND_NS
    return endpoint_fields(endpoint) | {
        "subject": endpoint.subject if envelope is None else envelope.subject,
        "created_at_ms": created_ms,
        "expires_at_ms": created_ms if envelope is None else envelope.budget.ttl,
        "reason": clean_text(reason),
    }
