"""Register and unregister endpoints; list and reset their breakers.

The row in bus.db decides which owner has a subject; the mailbox directory exists before the row, so that a process
that sees the row finds the mailbox. An endpoint that another process serves cannot be unregistered. Unregistering
deletes the row first. Then each unread message becomes a dead letter in unrouted/, and its file is deleted after that
commit; the empty directories are deleted last. A kill at any step leaves every message in new/, cur/ or failed/, and
recovery completes the removal. The breaker's rules are in posthouse.model.breaker.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from posthouse.bus.core import Core
from posthouse.bus.data_directory import UNROUTED, endpoint_hash, is_alive
from posthouse.bus.letter_counts import UNROUTED_NUMBER, LetterKind, add_letter, move_letters_to_unrouted
from posthouse.bus.maildir import FOLDERS, Mailbox, encode_dead_letter, write_dead_letter
from posthouse.bus.operator_files import read_regular_file
from posthouse.bus.results import BreakerView, Endpoint
from posthouse.bus.serving import EndpointServers
from posthouse.bus.settling import ENDS, dead_letter_body, decode_for_endpoint, endpoint_fields, find_last_record
from posthouse.bus.transaction import SQL, BusTransaction, breaker_of
from posthouse.files import write_atomic
from posthouse.log import get_log
from posthouse.model.breaker import BreakerState
from posthouse.model.clock import format_utc
from posthouse.model.errors import error
from posthouse.model.subjects import ONE, validate_subject

log = get_log(__name__)
UNREGISTERED = "endpoint unregistered"


class Description(msgspec.Struct, rename="camel", omit_defaults=True):
    """The content of endpoint.json."""

    subject: str
    registered_at: str
    owner: str | None = None


def _validate_endpoint_subject(subject: str) -> None:
    validate_subject(subject, allow_wildcards=True)
    if ONE in subject.split("."):
        raise error("subject_invalid", subject=subject, reason="an endpoint may hold `>` as its last token, never `*`")


async def register(
    core: Core, servers: EndpointServers, subject: str, owner: str | None, private_to: int | None = None
) -> Endpoint:
    """Register an endpoint, or join it as its owner; `private_to` is the instance whose replies it carries."""
    _validate_endpoint_subject(subject)
    if owner is not None and (type(owner) is not str or not owner):
        raise error("value_invalid", name="owner", reason="it is not a string, or is empty")
    hash_ = endpoint_hash(subject)
    registered_at = format_utc(core.clock.wall_ns())
    _refuse_collision(core, subject, hash_)
    core.directory.make_mailbox(hash_)
    endpoint = await core.ledger.run(lambda tx: insert_endpoint(tx, hash_, subject, owner, registered_at, private_to))
    core.directory.make_mailbox(hash_)  # again: an unregister may have removed it in between
    _write_description(core, endpoint)
    await servers.on_registered(endpoint)
    return endpoint


def _refuse_collision(core: Core, subject: str, hash_: str) -> None:
    path = core.directory.path_of(hash_)
    if path.is_symlink():
        raise error("store_path_unsafe", path=str(path), reason="it is a symbolic link")
    found = read_description(core, hash_)
    if found is not None and found.subject != subject:
        raise error("endpoint_collision", hash=hash_, subject=subject, other=found.subject)


def read_description(core: Core, hash_: str) -> Description | None:
    """Return the content of a mailbox's endpoint.json; None if it is missing or damaged."""
    data = read_regular_file(core.directory.path_of(hash_) / "endpoint.json")
    try:
        return None if data is None else msgspec.json.decode(data, type=Description)
    except msgspec.MsgspecError:
        return None


def insert_endpoint(
    tx: BusTransaction, hash_: str, subject: str, owner: str | None, registered_at: str, private_to: int | None = None
) -> Endpoint:
    """Return the row of an endpoint, added if it is missing."""
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
    data = msgspec.json.encode(Description(endpoint.subject, endpoint.registered_at, endpoint.owner)) + b"\n"
    if read_regular_file(path) != data:
        write_atomic(path, data, sync=core.is_power_safe)


async def find_endpoint(core: Core, subject: str) -> Endpoint:
    """Return a registered endpoint or raise endpoint_unknown."""
    validate_subject(subject, allow_wildcards=True)
    endpoint = await core.ledger.run(lambda tx: tx.registry.by_subject.get(subject))
    if endpoint is None:
        raise error("endpoint_unknown", subject=subject)
    return endpoint


async def unregister(core: Core, servers: EndpointServers, endpoint: Endpoint, *, force: bool) -> None:
    """Remove an endpoint with its rows and its mailbox."""
    await core.ledger.flush()
    mailbox = core.directory.mailbox(endpoint.hash)
    unread = sum(len(mailbox.names(folder)) for folder in ("cur", "new"))
    if unread and not force:
        raise error("endpoint_has_mail", subject=endpoint.subject, unread=unread)
    servers.drop(endpoint)
    await core.ledger.run(lambda tx: _delete_endpoint(core, tx, endpoint))
    core.spares.forget(endpoint.hash)
    await remove_mailbox(core, endpoint)


def _delete_endpoint(core: Core, tx: BusTransaction, endpoint: Endpoint) -> None:
    rows: Any = tx.db.execute(SQL.servers_of_endpoint, (endpoint.number,)).fetchall()
    for instance, _group, name in rows:
        if instance != core.instance.number and name is not None and is_alive(core.directory.procs, name):
            raise error("endpoint_served", subject=endpoint.subject)
    tx.db.execute(SQL.remove_servers_of_endpoint, (endpoint.number,))
    tx.db.execute(SQL.remove_mail_of_endpoint, (endpoint.number,))
    tx.db.execute(SQL.remove_endpoint, (endpoint.number,))
    move_letters_to_unrouted(tx, endpoint.number)
    tx.db.execute(SQL.count_removal)
    tx.journal.append("bus.unregistered", actor=endpoint.owner, ref=endpoint.subject, body=endpoint_fields(endpoint))


async def remove_mailbox(core: Core, endpoint: Endpoint) -> None:
    """Remove the mailbox of an endpoint that no longer has a row; its mail becomes dead letters of unrouted/."""
    mailbox = core.directory.find_mailbox(endpoint.hash)
    if mailbox is None:
        return
    unread = [(folder, name) for folder in ("cur", "new") for name in mailbox.names(folder)]
    for folder, name in unread:
        await _dead_letter_unread(core, endpoint, f"{folder}/{name}", name)
    _move_dead_letters(core.directory.mailbox(endpoint.hash), core.directory.unrouted)
    await core.ledger.run(lambda tx: _remove_directories(core, tx, endpoint))


async def _dead_letter_unread(core: Core, endpoint: Endpoint, path: str, name: str) -> None:
    """Turn one unread message into a dead letter of unrouted/; the file goes once that is committed."""
    try:
        data = core.directory.mailbox(endpoint.hash).read(path)
    except OSError:
        return
    envelope, _reason = decode_for_endpoint(endpoint, name, data)
    if envelope is None:
        return
    last_record = await core.ledger.run(lambda tx: find_last_record(tx, endpoint, name))
    if last_record not in ENDS:
        dead_letter = encode_dead_letter(data, UNREGISTERED, format_utc(core.clock.wall_ns()))
        write_dead_letter(core.directory.unrouted, name, core.instance.name, dead_letter, sync=core.is_power_safe)
        body = dead_letter_body(endpoint, envelope, name, UNREGISTERED) | {"endpoint_hash": UNROUTED}
        sender = envelope.from_
        size = len(dead_letter)
        await core.ledger.run(lambda tx: _record_unread(tx, sender, name, body, size))
    core.directory.mailbox(endpoint.hash).remove(path)


def _record_unread(tx: BusTransaction, sender: str, id_: str, body: dict[str, Any], size_bytes: int) -> None:
    add_letter(tx, UNROUTED_NUMBER, id_, LetterKind.ACCEPTED, size_bytes)
    tx.journal.append("bus.dead", actor=sender, ref=id_, body=body)


def _move_dead_letters(mailbox: Mailbox, unrouted: Mailbox) -> None:
    for name in mailbox.names("failed"):
        os.rename(f"failed/{name}", f"failed/{name}", src_dir_fd=mailbox.fd, dst_dir_fd=unrouted.fd)


def _remove_directories(core: Core, tx: BusTransaction, endpoint: Endpoint) -> None:
    """Remove the remaining files, inside a transaction: register creates the directories again after its own."""
    if endpoint.hash in tx.registry.by_hash:
        return
    path = core.directory.path_of(endpoint.hash)
    core.directory.forget(endpoint.hash)
    for file in (*(path / "tmp").glob("*"), path / "serve.lock"):
        file.unlink(missing_ok=True)
    try:
        for folder in FOLDERS:
            (path / folder).rmdir()
        (path / "endpoint.json").unlink(missing_ok=True)
        path.rmdir()
    except FileNotFoundError:  # another process removes it too
        return
    except OSError as failure:  # a message arrived meanwhile, or there is a foreign file: recovery deals with it
        log.warning("mailbox_not_removed", path=str(path), reason=str(failure))


async def list_breakers(core: Core) -> list[BreakerView]:
    """Return the breaker of every endpoint, sorted by subject; counts of another boot are void."""

    def work(tx: BusTransaction) -> list[BreakerView]:
        rows: Any = tx.db.execute(SQL.breakers).fetchall()
        return [_breaker_view(subject, hash_, breaker_of(*columns), tx.boot_id) for subject, hash_, *columns in rows]

    return await core.ledger.run(work)


async def reset_breaker(core: Core, endpoint: Endpoint) -> None:
    """Close a breaker and discard its counts."""

    def work(tx: BusTransaction) -> None:
        counters = tx.endpoint(endpoint.number)
        if counters is not None:
            counters.set_breaker(BreakerState(boot_id=tx.boot_id))
            tx.journal.append("bus.breaker_reset", ref=endpoint.subject, body=endpoint_fields(endpoint))

    await core.ledger.run(work)


def _breaker_view(subject: str, hash_: str, state: BreakerState, boot_id: str) -> BreakerView:
    if state.boot_id != boot_id:
        state = BreakerState()
    return BreakerView(subject, hash_, state.circuit, state.failures, state.successes, state.probes)
