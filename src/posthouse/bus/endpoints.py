"""Register and unregister endpoints; list and reset their breakers.

The row in bus.db decides who owns a subject; the mailbox directory and its endpoint.json exist before the row, so
that a process that sees the row finds the mailbox. Unregistering takes serve.lock first, so that no process serves
an endpoint that is being removed; unread messages need `force` and become dead letters in unrouted/, with the
endpoint's own dead letters. The breaker's rules are in posthouse.model.breaker.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.data_directory import UNROUTED, endpoint_hash
from posthouse.bus.maildir import Mailbox, ServeLock, encode_dead_letter, write_dead_letter
from posthouse.bus.operator_files import read_regular_file
from posthouse.bus.results import BreakerView, Endpoint
from posthouse.bus.settling import dead_letter_body, decode_for_endpoint
from posthouse.bus.transaction import SQL, BusTransaction, breaker_of
from posthouse.files import write_atomic
from posthouse.model.breaker import BreakerState
from posthouse.model.clock import format_utc
from posthouse.model.errors import error
from posthouse.model.subjects import ONE, validate_subject

if TYPE_CHECKING:
    from posthouse.bus.session import Session


UNREGISTERED = "endpoint unregistered"


class _Description(msgspec.Struct, rename="camel", omit_defaults=True):
    """endpoint.json."""

    subject: str
    registered_at: str
    owner: str | None = None


def check_endpoint_subject(subject: str) -> None:
    """Refuse what cannot be an endpoint: only a last `>` may stand beside literal tokens."""
    validate_subject(subject, allow_wildcards=True)
    if ONE in subject.split("."):
        raise error("subject_invalid", subject=subject, reason="an endpoint may hold `>` as its last token, never `*`")


def register(session: Session, subject: str, owner: str | None, private_to: int | None = None) -> Endpoint:
    """Register an endpoint, or join as its owner."""
    check_endpoint_subject(subject)
    if owner is not None and (type(owner) is not str or not owner):
        raise error("value_invalid", name="owner", reason="it is not a text, or empty")
    hash_ = endpoint_hash(subject)
    registered_at = format_utc(session.clock.wall_ns())
    _refuse_collision(session, subject, hash_)
    session.directory.make_mailbox(hash_)
    endpoint = session.ledger.run(lambda page: _insert_endpoint(page, hash_, subject, owner, registered_at, private_to))
    session.directory.make_mailbox(hash_)  # again: an unregister may have removed it in between
    _write_description(session, endpoint)
    session.serving.registered(endpoint)
    return endpoint


def _refuse_collision(session: Session, subject: str, hash_: str) -> None:
    path = session.directory.path_of(hash_)
    if path.is_symlink():
        raise error("store_path_unsafe", path=str(path), reason="it is a symbolic link")
    data = read_regular_file(path / "endpoint.json")
    if data is None:
        return
    try:
        other = msgspec.json.decode(data, type=_Description).subject
    except msgspec.MsgspecError:  # written anew below
        return
    if other != subject:
        raise error("endpoint_collision", hash=hash_, subject=subject, other=other)


def _insert_endpoint(
    page: BusTransaction, hash_: str, subject: str, owner: str | None, registered_at: str, private_to: int | None
) -> Endpoint:
    row: Any = page.db.execute(SQL.endpoint_by_hash, (hash_,)).fetchone()
    if row is not None:
        found = Endpoint(*row)
        if found.subject != subject:
            raise error("endpoint_collision", hash=hash_, subject=subject, other=found.subject)
        if found.owner != owner:
            raise error("endpoint_owned", subject=subject, owner=found.owner)
        return found
    number = page.db.execute(SQL.add_endpoint, (hash_, subject, owner, registered_at, private_to)).get
    page.db.execute(SQL.bump_endpoints)
    body = {"endpoint": subject, "endpoint_hash": hash_} | ({"owner": owner} if owner else {})
    page.tx.append("bus.registered", actor=owner, ref=subject, body=body)
    return Endpoint(number, hash_, subject, owner, registered_at)


def _write_description(session: Session, endpoint: Endpoint) -> None:
    path = session.directory.path_of(endpoint.hash) / "endpoint.json"
    data = msgspec.json.encode(_Description(endpoint.subject, endpoint.registered_at, endpoint.owner)) + b"\n"
    if read_regular_file(path) != data:
        write_atomic(path, data, sync=session.syncer is not None)


def find_endpoint(session: Session, subject: str) -> Endpoint:
    """Return a registered endpoint or raise endpoint_unknown."""
    validate_subject(subject, allow_wildcards=True)
    endpoint = session.ledger.run(lambda page: page.book.by_subject.get(subject))
    if endpoint is None:
        raise error("endpoint_unknown", subject=subject)
    return endpoint


def unregister(session: Session, endpoint: Endpoint, *, force: bool) -> None:
    """Remove an endpoint with its rows and its mailbox."""
    session.ledger.flush()
    mailbox = session.directory.mailbox(endpoint.hash)
    unread = [(box, name) for box in ("cur", "new") for name in mailbox.names(box)]
    if unread and not force:
        raise error("endpoint_has_mail", subject=endpoint.subject, unread=len(unread))
    session.serving.drop(endpoint)
    mailbox = session.directory.mailbox(endpoint.hash)
    lock = ServeLock(mailbox)
    try:
        if not lock.take():
            raise error("endpoint_served", subject=endpoint.subject)
        session.ledger.run(lambda page: _delete_endpoint(page, endpoint))
        _dead_letter_unread(session, endpoint, mailbox)
        _move_letters(session, mailbox)
        path = session.directory.path_of(endpoint.hash)
        session.directory.forget(endpoint.hash)
        session.spares.forget(endpoint.hash)
        shutil.rmtree(path)
    finally:
        lock.close()


def _delete_endpoint(page: BusTransaction, endpoint: Endpoint) -> None:
    page.db.execute(SQL.remove_mail_of_endpoint, (endpoint.number,))
    page.db.execute(SQL.remove_endpoint, (endpoint.number,))
    page.db.execute(SQL.bump_endpoints)
    body = {"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash}
    page.tx.append("bus.unregistered", actor=endpoint.owner, ref=endpoint.subject, body=body)


def _dead_letter_unread(session: Session, endpoint: Endpoint, mailbox: Mailbox) -> None:
    """Turn unread mail into dead letters of unrouted/: force throws nothing away."""
    failed_at = format_utc(session.clock.wall_ns())
    for box in ("cur", "new"):
        for name in mailbox.names(box):
            try:
                data = mailbox.read(f"{box}/{name}")
            except OSError:
                continue
            envelope, _reason = decode_for_endpoint(endpoint, name, data)
            if envelope is None:
                continue
            letter = encode_dead_letter(data, UNREGISTERED, failed_at)
            write_dead_letter(session.directory.unrouted, name, session.instance.name, letter)
            body = {"endpoint": endpoint.subject, "endpoint_hash": UNROUTED}
            body |= dead_letter_body(envelope, endpoint, name, UNREGISTERED)
            session.ledger.run(
                lambda page, name=name, envelope=envelope, body=body: page.tx.append(  # type: ignore[misc]
                    "bus.dead", actor=envelope.from_, ref=name, body=body
                )
            )


def _move_letters(session: Session, mailbox: Mailbox) -> None:
    unrouted = session.directory.unrouted
    for name in mailbox.names("failed"):
        os.rename(f"failed/{name}", f"failed/{name}", src_dir_fd=mailbox.fd, dst_dir_fd=unrouted.fd)


def list_breakers(session: Session) -> list[BreakerView]:
    """Return the breaker of every endpoint, by subject; what another boot remembered is void."""

    def work(page: BusTransaction) -> list[BreakerView]:
        rows: Any = page.db.execute(SQL.breakers).fetchall()
        return [_breaker_view(subject, hash_, breaker_of(*columns), page.boot_id) for subject, hash_, *columns in rows]

    return session.ledger.run(work)


def reset_breaker(session: Session, endpoint: Endpoint) -> None:
    """Close a breaker, whatever it has counted."""

    def work(page: BusTransaction) -> None:
        counters = page.endpoint(endpoint.number)
        if counters is not None:
            counters.set_breaker(BreakerState(boot_id=page.boot_id))
            body = {"endpoint": endpoint.subject, "endpoint_hash": endpoint.hash}
            page.tx.append("bus.breaker_reset", ref=endpoint.subject, body=body)

    session.ledger.run(work)


def _breaker_view(subject: str, hash_: str, state: BreakerState, boot_id: str) -> BreakerView:
    if state.boot_id != boot_id:
        state = BreakerState()
    return BreakerView(subject, hash_, state.circuit, state.failures, state.successes, state.probes)
