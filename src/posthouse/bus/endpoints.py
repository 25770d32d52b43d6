"""Register and unregister endpoints; list and reset their breakers.

The row in bus.db decides who owns a subject; the mailbox directory and its endpoint.json exist before the row, so
that a process that sees the row finds the mailbox. Unregistering takes serve.lock first, so that no process serves
an endpoint that is being removed; unread messages need `force` and become dead letters in unrouted/, together with
the endpoint's own dead letters. The breaker's rules are in posthouse.model.breaker.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import msgspec

from posthouse.bus.core import Core
from posthouse.bus.data_directory import UNROUTED, endpoint_hash
from posthouse.bus.maildir import Mailbox, ServeLock, encode_dead_letter, write_dead_letter
from posthouse.bus.operator_files import read_regular_file
from posthouse.bus.results import BreakerView, Endpoint
from posthouse.bus.serving import EndpointServers
from posthouse.bus.settling import dead_letter_body, decode_for_endpoint, endpoint_fields
from posthouse.bus.transaction import SQL, BusTransaction, breaker_of
from posthouse.files import write_atomic
from posthouse.model.breaker import BreakerState
from posthouse.model.clock import format_utc
from posthouse.model.errors import error
from posthouse.model.subjects import ONE, validate_subject

UNREGISTERED = "endpoint unregistered"


class _Description(msgspec.Struct, rename="camel", omit_defaults=True):
    """The content of endpoint.json."""

    subject: str
    registered_at: str
    owner: str | None = None


def _validate_endpoint_subject(subject: str) -> None:
    validate_subject(subject, allow_wildcards=True)
    if ONE in subject.split("."):
        raise error("subject_invalid", subject=subject, reason="an endpoint may hold `>` as its last token, never `*`")


def register(
    core: Core, servers: EndpointServers, subject: str, owner: str | None, private_to: int | None = None
) -> Endpoint:
    """Register an endpoint, or join it as its owner; `private_to` is the instance whose replies it carries."""
    _validate_endpoint_subject(subject)
    if owner is not None and (type(owner) is not str or not owner):
        raise error("value_invalid", name="owner", reason="it is not a text, or empty")
    hash_ = endpoint_hash(subject)
    registered_at = format_utc(core.clock.wall_ns())
    _refuse_collision(core, subject, hash_)
    core.directory.make_mailbox(hash_)
    endpoint = core.ledger.run(lambda tx: _insert_endpoint(tx, hash_, subject, owner, registered_at, private_to))
    core.directory.make_mailbox(hash_)  # again: an unregister may have removed it in between
    _write_description(core, endpoint)
    servers.on_registered(endpoint)
    return endpoint


def _refuse_collision(core: Core, subject: str, hash_: str) -> None:
    path = core.directory.path_of(hash_)
    if path.is_symlink():
        raise error("store_path_unsafe", path=str(path), reason="it is a symbolic link")
    data = read_regular_file(path / "endpoint.json")
    if data is None:
        return
    try:
        other = msgspec.json.decode(data, type=_Description).subject
    except msgspec.MsgspecError:  # register writes it again
        return
    if other != subject:
        raise error("endpoint_collision", hash=hash_, subject=subject, other=other)


def _insert_endpoint(
    tx: BusTransaction, hash_: str, subject: str, owner: str | None, registered_at: str, private_to: int | None
) -> Endpoint:
    row: Any = tx.db.execute(SQL.endpoint_by_hash, (hash_,)).fetchone()
    if row is not None:
        found = Endpoint(*row)
        if found.subject != subject:
            raise error("endpoint_collision", hash=hash_, subject=subject, other=found.subject)
        if found.owner != owner:
            raise error("endpoint_owned", subject=subject, owner=found.owner)
        return found
    number = tx.db.execute(SQL.add_endpoint, (hash_, subject, owner, registered_at, private_to)).get
    tx.db.execute(SQL.bump_endpoints)
    endpoint = Endpoint(number, hash_, subject, owner, registered_at)
    body = endpoint_fields(endpoint) | ({"owner": owner} if owner else {})
    tx.journal.append("bus.registered", actor=owner, ref=subject, body=body)
    return endpoint


def _write_description(core: Core, endpoint: Endpoint) -> None:
    path = core.directory.path_of(endpoint.hash) / "endpoint.json"
    data = msgspec.json.encode(_Description(endpoint.subject, endpoint.registered_at, endpoint.owner)) + b"\n"
    if read_regular_file(path) != data:
        write_atomic(path, data, sync=core.is_power_safe)


def find_endpoint(core: Core, subject: str) -> Endpoint:
    """Return a registered endpoint or raise endpoint_unknown."""
    validate_subject(subject, allow_wildcards=True)
    endpoint = core.ledger.run(lambda tx: tx.registry.by_subject.get(subject))
    if endpoint is None:
        raise error("endpoint_unknown", subject=subject)
    return endpoint


def unregister(core: Core, servers: EndpointServers, endpoint: Endpoint, *, force: bool) -> None:
    """Remove an endpoint with its rows and its mailbox."""
    core.ledger.flush()
    mailbox = core.directory.mailbox(endpoint.hash)
    unread = sum(len(mailbox.names(folder)) for folder in ("cur", "new"))
    if unread and not force:
        raise error("endpoint_has_mail", subject=endpoint.subject, unread=unread)
    servers.drop(endpoint)
    mailbox = core.directory.mailbox(endpoint.hash)
    lock = ServeLock(mailbox)
    try:
        if not lock.take():
            raise error("endpoint_served", subject=endpoint.subject)
        core.ledger.run(lambda tx: _delete_endpoint(tx, endpoint))
        _dead_letter_unread(core, endpoint, mailbox)
        _move_dead_letters(mailbox, core.directory.unrouted)
        path = core.directory.path_of(endpoint.hash)
        core.directory.forget(endpoint.hash)
        core.spares.forget(endpoint.hash)
        shutil.rmtree(path)
    finally:
        lock.close()


def _delete_endpoint(tx: BusTransaction, endpoint: Endpoint) -> None:
    tx.db.execute(SQL.remove_mail_of_endpoint, (endpoint.number,))
    tx.db.execute(SQL.remove_endpoint, (endpoint.number,))
    tx.db.execute(SQL.bump_endpoints)
    tx.journal.append("bus.unregistered", actor=endpoint.owner, ref=endpoint.subject, body=endpoint_fields(endpoint))


def _dead_letter_unread(core: Core, endpoint: Endpoint, mailbox: Mailbox) -> None:
    """Turn unread messages into dead letters of unrouted/, so that `force` loses nothing."""
    failed_at = format_utc(core.clock.wall_ns())
    for folder in ("cur", "new"):
        for name in mailbox.names(folder):
            try:
                data = mailbox.read(f"{folder}/{name}")
            except OSError:
                continue
            envelope, _reason = decode_for_endpoint(endpoint, name, data)
            if envelope is None:
                continue
            dead_letter = encode_dead_letter(data, UNREGISTERED, failed_at)
            write_dead_letter(core.directory.unrouted, name, core.instance.name, dead_letter)
            body = dead_letter_body(endpoint, envelope, name, UNREGISTERED) | {"endpoint_hash": UNROUTED}
            core.ledger.run(
                lambda tx, name=name, envelope=envelope, body=body: tx.journal.append(  # type: ignore[misc]
                    "bus.dead", actor=envelope.from_, ref=name, body=body
                )
            )


def _move_dead_letters(mailbox: Mailbox, unrouted: Mailbox) -> None:
    for name in mailbox.names("failed"):
        os.rename(f"failed/{name}", f"failed/{name}", src_dir_fd=mailbox.fd, dst_dir_fd=unrouted.fd)


def list_breakers(core: Core) -> list[BreakerView]:
    """Return the breaker of every endpoint, sorted by subject; counts of another boot are void."""

    def work(tx: BusTransaction) -> list[BreakerView]:
        rows: Any = tx.db.execute(SQL.breakers).fetchall()
        return [_breaker_view(subject, hash_, breaker_of(*columns), tx.boot_id) for subject, hash_, *columns in rows]

    return core.ledger.run(work)


def reset_breaker(core: Core, endpoint: Endpoint) -> None:
    """Close a breaker and discard its counts."""

    def work(tx: BusTransaction) -> None:
        counters = tx.endpoint(endpoint.number)
        if counters is not None:
            counters.set_breaker(BreakerState(boot_id=tx.boot_id))
            tx.journal.append("bus.breaker_reset", ref=endpoint.subject, body=endpoint_fields(endpoint))

    core.ledger.run(work)


def _breaker_view(subject: str, hash_: str, state: BreakerState, boot_id: str) -> BreakerView:
    if state.boot_id != boot_id:
        state = BreakerState()
    return BreakerView(subject, hash_, state.circuit, state.failures, state.successes, state.probes)
