"""Messages for agents that poll: read what waits in new/, acknowledge what is done.

Reading consumes nothing. Every change of a mailbox needs serve.lock, so that a poller and a server never take the
same message: ack returns "being_served" when another process holds the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.bus.endpoints import find_endpoint
from posthouse.bus.maildir import SPARE_MAX_BYTES, Mailbox, ServeLock, encode_dead_letter, write_dead_letter
from posthouse.bus.results import AckAnswer, Endpoint
from posthouse.bus.settling import EXPIRED, EndMessage, FileStatus, dead_letter_body, decode_for_endpoint, settle_file
from posthouse.bus.transaction import BusTransaction
from posthouse.model.budget import is_expired
from posthouse.model.clock import format_utc
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.ulid import validate_ulid

if TYPE_CHECKING:
    from posthouse.bus.session import Session


def read_inbox(session: Session, subject: str, limit: int, after: str | None) -> list[Envelope]:
    """Return up to `limit` waiting messages, oldest first."""
    if type(limit) is not int or limit < 1:
        raise error("value_invalid", name="limit", reason=f"{limit!r} is not a positive number")
    if after is not None:
        validate_ulid(after)
    endpoint = find_endpoint(session, subject)
    mailbox = session.directory.mailbox(endpoint.hash)
    now_ms = session.clock.wall_ns() // MILLISECOND_NS
    found: list[Envelope] = []
    expired: list[tuple[Envelope, bytes]] = []
    for name in mailbox.names("new"):
        if len(found) == limit:
            break
        opened = None if after is not None and name <= after else _read_waiting(endpoint, mailbox, name)
        if opened is None:
            continue
        if is_expired(opened[0].budget, now_ms):
            expired.append(opened)
        else:
            found.append(opened[0])
    if expired:
        _dead_letter(session, endpoint, expired)
    return found


def ack(session: Session, subject: str, id_: str) -> AckAnswer:
    """End a waiting message that a poller has dealt with."""
    validate_ulid(id_)
    endpoint = find_endpoint(session, subject)
    server = session.serving.server(endpoint.number)
    if server is not None:
        if not server.drop(id_):
            return "being_served"
        return _ack_locked(session, endpoint, id_)
    lock = ServeLock(session.directory.mailbox(endpoint.hash))
    try:
        return _ack_locked(session, endpoint, id_) if lock.take() else "being_served"
    finally:
        lock.close()


def _ack_locked(session: Session, endpoint: Endpoint, id_: str) -> AckAnswer:
    """Close the reservation if it is still open, then end the message; the caller holds the lock."""
    session.ledger.flush()
    mailbox = session.directory.mailbox(endpoint.hash)
    box = next((box for box in ("new", "cur") if mailbox.has(f"{box}/{id_}")), None)
    if box is None:
        return "unknown"

    def settle_it(page: BusTransaction) -> FileStatus:
        return settle_file(page, endpoint, mailbox, box, id_, session.instance.number)[0]

    verdict = session.ledger.run(settle_it)
    if verdict is FileStatus.ENDED:
        mailbox.remove(f"{box}/{id_}")
    if verdict is not FileStatus.READY:
        return "unknown"
    is_spare = (mailbox.size(f"{box}/{id_}") or 0) <= SPARE_MAX_BYTES
    session.ledger.submit(
        EndMessage(session, endpoint, id_, f"{box}/{id_}", "bus.handled", actor=None, is_spare=is_spare)
    )
    session.ledger.flush()
    return "acked"


def dead_letter_expired(session: Session, hash_: str) -> None:
    """Turn the expired mail of a mailbox that nobody serves into dead letters."""
    endpoint = session.ledger.run(lambda page: page.book.by_hash.get(hash_))
    if endpoint is None:
        return
    mailbox = session.directory.mailbox(hash_)
    now_ms = session.clock.wall_ns() // MILLISECOND_NS
    expired = [
        (envelope, data)
        for name in mailbox.names("new")
        if (found := _read_waiting(endpoint, mailbox, name)) is not None
        for envelope, data in [found]
        if is_expired(envelope.budget, now_ms)
    ]
    if expired:
        _dead_letter(session, endpoint, expired)


def _read_waiting(endpoint: Endpoint, mailbox: Mailbox, name: str) -> tuple[Envelope, bytes] | None:
    """Return a waiting message; None for what was taken meanwhile, and for strays, which the server puts aside."""
    if not _is_id(name):
        return None
    try:
        data = mailbox.read(f"new/{name}")
    except OSError:
        return None
    envelope, _reason = decode_for_endpoint(endpoint, name, data)
    return None if envelope is None else (envelope, data)


def _dead_letter(session: Session, endpoint: Endpoint, expired: list[tuple[Envelope, bytes]]) -> None:
    """Turn expired mail into dead letters, unless somebody else serves the mailbox and will do so."""
    if session.serving.server(endpoint.number) is not None:
        return
    mailbox = session.directory.mailbox(endpoint.hash)
    lock = ServeLock(mailbox)
    try:
        if not lock.take():
            return
        session.ledger.flush()
        for envelope, data in expired:
            letter = encode_dead_letter(data, EXPIRED, format_utc(session.clock.wall_ns()))
            write_dead_letter(mailbox, envelope.id, session.instance.name, letter)
            body = dead_letter_body(envelope, endpoint, envelope.id, EXPIRED)
            path = f"new/{envelope.id}"
            end = EndMessage(session, endpoint, envelope.id, path, "bus.dead", actor=envelope.from_, body=body)
            session.ledger.submit(end)
        session.ledger.flush()
    finally:
        lock.close()


def _is_id(name: str) -> bool:
    try:
        validate_ulid(name)
    except PosthouseError:
        return False
    return True
