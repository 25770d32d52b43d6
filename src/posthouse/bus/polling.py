"""Messages for agents that poll: read those that wait in new/, acknowledge those that are done.

Reading consumes nothing. Every change of a mailbox needs serve.lock, so that a poller and a server never process the
same message: ack returns "being_served" if another process holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from posthouse.bus.core import Core
from posthouse.bus.endpoints import find_endpoint
from posthouse.bus.maildir import SPARE_MAX_BYTES, Mailbox, ServeLock
from posthouse.bus.results import AckAnswer, Endpoint
from posthouse.bus.serving import EndpointServers
from posthouse.bus.settling import (
    EXPIRED,
    EndMessage,
    FileStatus,
    decode_for_endpoint,
    is_message_id,
    settle_file,
    write_message_dead_letter,
)
from posthouse.bus.taps import Follower, Followers
from posthouse.journal.read import read_extent
from posthouse.journal.records import Record
from posthouse.model.budget import is_expired
from posthouse.model.envelope import Envelope
from posthouse.model.errors import error
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.ulid import validate_ulid


class _Waiting(NamedTuple):
    """A message in new/ and the content of its file."""

    envelope: Envelope
    data: bytes


def read_inbox(core: Core, servers: EndpointServers, subject: str, limit: int, after: str | None) -> list[Envelope]:
    """Return up to `limit` waiting messages, oldest first; expired ones become dead letters."""
    if type(limit) is not int or limit < 1:
        raise error("value_invalid", name="limit", reason=f"{limit!r} is not a positive number")
    if after is not None:
        validate_ulid(after)
    endpoint = find_endpoint(core, subject)
    mailbox = core.directory.mailbox(endpoint.hash)
    now_ms = core.clock.wall_ns() // MILLISECOND_NS
    found: list[Envelope] = []
    expired: list[_Waiting] = []
    for name in mailbox.names("new"):
        if len(found) == limit:
            break
        waiting = None if after is not None and name <= after else _read_waiting(endpoint, mailbox, name)
        if waiting is None:
            continue
        if is_expired(waiting.envelope.budget, now_ms):
            expired.append(waiting)
        else:
            found.append(waiting.envelope)
    if expired:
        _dead_letter(core, servers, endpoint, expired)
    return found


async def follow_arrivals(followers: Followers, subject: str, on_arrival: Callable[[], None]) -> Follower:
    """Call `on_arrival` for every message that is stored for an endpoint from now on."""
    core = followers.core
    hash_ = find_endpoint(core, subject).hash
    core.ledger.flush()

    async def on_record(record: Record) -> None:
        if record.decoded_body()["endpoint_hash"] == hash_:
            on_arrival()

    extent = await core.store.pool.run(read_extent)
    return followers.add(extent.head, ("bus.published",), on_record)


def ack(core: Core, servers: EndpointServers, subject: str, id_: str) -> AckAnswer:
    """End a waiting message that a poller has processed."""
    validate_ulid(id_)
    endpoint = find_endpoint(core, subject)
    server = servers.find(endpoint.number)
    if server is not None:
        return _ack_locked(core, endpoint, id_) if server.forget_acked(id_) else "being_served"
    lock = ServeLock(core.directory.mailbox(endpoint.hash))
    try:
        return _ack_locked(core, endpoint, id_) if lock.take() else "being_served"
    finally:
        lock.close()


def _ack_locked(core: Core, endpoint: Endpoint, id_: str) -> AckAnswer:
    """Close the reservation if it is still open, then end the message; this process holds the serve lock."""
    core.ledger.flush()
    mailbox = core.directory.mailbox(endpoint.hash)
    folder = next((folder for folder in ("new", "cur") if mailbox.has(f"{folder}/{id_}")), None)
    if folder is None:
        return "unknown"
    path, instance = f"{folder}/{id_}", core.instance.number
    status = core.ledger.run(lambda tx: settle_file(tx, endpoint, mailbox, folder, id_, instance)).status
    if status is FileStatus.ENDED:
        mailbox.remove(path)
    if status is not FileStatus.READY:
        return "unknown"
    is_spare = (mailbox.size(path) or 0) <= SPARE_MAX_BYTES
    core.ledger.submit(EndMessage(core, endpoint, id_, path, "bus.handled", actor=None, is_spare=is_spare))
    core.ledger.flush()
    return "acked"


def dead_letter_expired(core: Core, servers: EndpointServers, hash_: str) -> None:
    """Turn the expired messages of a mailbox that no process serves into dead letters."""
    endpoint = core.ledger.run(lambda tx: tx.registry.by_hash.get(hash_))
    if endpoint is None:
        return
    mailbox = core.directory.mailbox(hash_)
    now_ms = core.clock.wall_ns() // MILLISECOND_NS
    waiting = (_read_waiting(endpoint, mailbox, name) for name in mailbox.names("new"))
    expired = [found for found in waiting if found is not None and is_expired(found.envelope.budget, now_ms)]
    if expired:
        _dead_letter(core, servers, endpoint, expired)


def _read_waiting(endpoint: Endpoint, mailbox: Mailbox, name: str) -> _Waiting | None:
    """Return a waiting message; None if it is gone, or not a message: the server removes invalid files."""
    if not is_message_id(name):
        return None
    try:
        data = mailbox.read(f"new/{name}")
    except OSError:
        return None
    envelope, _reason = decode_for_endpoint(endpoint, name, data)
    return None if envelope is None else _Waiting(envelope, data)


def _dead_letter(core: Core, servers: EndpointServers, endpoint: Endpoint, expired: list[_Waiting]) -> None:
    """Turn expired messages into dead letters, unless a process serves the mailbox and will do so."""
    if servers.find(endpoint.number) is not None:
        return
    mailbox = core.directory.mailbox(endpoint.hash)
    lock = ServeLock(mailbox)
    try:
        if not lock.take():
            return
        core.ledger.flush()
        for envelope, data in expired:
            path = f"new/{envelope.id}"
            core.ledger.submit(write_message_dead_letter(core, endpoint, mailbox, path, envelope, data, EXPIRED))
        core.ledger.flush()
    finally:
        lock.close()
