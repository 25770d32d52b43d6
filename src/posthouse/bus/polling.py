"""Messages for agents that poll: read those that wait in new/, acknowledge those that are done.

Reading consumes nothing. A poller changes a mailbox only while no other process serves it, which it checks in the same
transaction: ack returns "being_served" otherwise. Expired messages are claimed before their dead letters are written,
so that no server starts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from posthouse.bus import settling
from posthouse.bus.core import Core
from posthouse.bus.data_directory import is_alive
from posthouse.bus.endpoints import find_endpoint
from posthouse.bus.maildir import SPARE_MAX_BYTES, Mailbox
from posthouse.bus.results import AckAnswer, Endpoint
from posthouse.bus.serving import EndpointServers
from posthouse.bus.taps import Follower, Followers
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.journal.digest import Record
from posthouse.journal.read import read_extent
from posthouse.model.budget import is_expired
from posthouse.model.envelope import Envelope
from posthouse.model.errors import error
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.ulid import validate_ulid


class _Waiting(NamedTuple):
    """A message in new/ and the content of its file."""

    envelope: Envelope
    data: bytes


async def read_inbox(core: Core, subject: str, limit: int, after: str | None) -> list[Envelope]:
    """Return up to `limit` waiting messages, oldest first; expired ones become dead letters."""
    if type(limit) is not int or limit < 1:
        raise error("value_invalid", name="limit", reason=f"{limit!r} is not a positive number")
    if after is not None:
        validate_ulid(after)
    endpoint = await find_endpoint(core, subject)
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
        await _dead_letter(core, endpoint, expired)
    return found


async def follow_arrivals(followers: Followers, subject: str, on_arrival: Callable[[], None]) -> Follower:
    """Call `on_arrival` for every message that is stored for an endpoint from now on."""
    core = followers.core
    hash_ = (await find_endpoint(core, subject)).hash
    await core.ledger.flush()

    async def on_record(record: Record) -> None:
        if record.decoded_body()["endpoint_hash"] == hash_:
            on_arrival()

    extent = await core.store.pool.run(read_extent)
    return followers.add(extent.head, ("bus.published", "bus.redelivered"), on_record)


async def ack(core: Core, servers: EndpointServers, subject: str, id_: str) -> AckAnswer:
    """End a waiting message that a poller has processed."""
    validate_ulid(id_)
    endpoint = await find_endpoint(core, subject)
    await core.ledger.flush()
    server = servers.find(endpoint.number)
    if server is not None and not server.forget_acked(id_):
        return "being_served"
    mailbox = core.directory.mailbox(endpoint.hash)
    folder = next((folder for folder in ("new", "cur") if mailbox.has(f"{folder}/{id_}")), None)
    if folder is None:
        return "unknown"
    path = f"{folder}/{id_}"
    is_spare = (mailbox.size(path) or 0) <= SPARE_MAX_BYTES
    end = settling.EndMessage(core, endpoint, id_, path, "bus.handled", actor=None, is_spare=is_spare)
    status = await core.ledger.run(lambda tx: _end_unserved(core, tx, endpoint, path, end))
    if status is settling.FileStatus.READY:
        end.on_committed()
        return "acked"
    if status is settling.FileStatus.ENDED:
        core.directory.mailbox(endpoint.hash).remove(path)
    return "being_served" if status is settling.FileStatus.CLAIMED else "unknown"


def _end_unserved(
    core: Core, tx: BusTransaction, endpoint: Endpoint, path: str, end: settling.EndMessage
) -> settling.FileStatus:
    """End a stored message unless another process serves the endpoint; return the kind of file that was there."""
    if _is_served(core, tx, endpoint, except_for=core.instance.number):
        return settling.FileStatus.CLAIMED
    mailbox = core.directory.mailbox(endpoint.hash)
    folder, _, id_ = path.partition("/")
    status = settling.settle_file(tx, endpoint, mailbox, folder, id_, core.instance.number).status
    if status is settling.FileStatus.READY:
        end.apply(tx)
    return status


def _is_served(core: Core, tx: BusTransaction, endpoint: Endpoint, except_for: int | None = None) -> bool:
    rows: Any = tx.db.execute(SQL.servers_of_endpoint, (endpoint.number,)).fetchall()
    others = [name for instance, _group, name in rows if instance != except_for and name is not None]
    return any(is_alive(core.directory.procs, name) for name in others)


async def dead_letter_expired(core: Core, hash_: str) -> None:
    """Turn the expired messages of a mailbox that no process serves into dead letters."""
    endpoint = await core.ledger.run(lambda tx: tx.registry.by_hash.get(hash_))
    if endpoint is None:
        return
    mailbox = core.directory.mailbox(hash_)
    now_ms = core.clock.wall_ns() // MILLISECOND_NS
    waiting = (_read_waiting(endpoint, mailbox, name) for name in mailbox.names("new"))
    expired = [found for found in waiting if found is not None and is_expired(found.envelope.budget, now_ms)]
    if expired:
        await _dead_letter(core, endpoint, expired)


def _read_waiting(endpoint: Endpoint, mailbox: Mailbox, name: str) -> _Waiting | None:
    """Return a waiting message; None if it is gone, or not a message: the server removes invalid files."""
    if not settling.is_message_id(name):
        return None
    try:
        data = mailbox.read(f"new/{name}")
    except OSError:
        return None
    envelope, _reason = settling.decode_for_endpoint(endpoint, name, data)
    return None if envelope is None else _Waiting(envelope, data)


async def _dead_letter(core: Core, endpoint: Endpoint, expired: list[_Waiting]) -> None:
    """Turn expired messages into dead letters, unless a process serves the mailbox: then its server does that."""
    ids = [waiting.envelope.id for waiting in expired]
    claimed = await core.ledger.run(lambda tx: _claim(core, tx, endpoint, ids))
    mailbox = core.directory.mailbox(endpoint.hash)
    for envelope, data in expired:
        if envelope.id not in claimed:
            continue
        path = f"new/{envelope.id}"
        try:
            end = settling.write_message_dead_letter(core, endpoint, mailbox, path, envelope, data, settling.EXPIRED)
        except OSError:
            await core.ledger.run(lambda tx: tx.db.execute(SQL.unclaim_all, (core.instance.number, endpoint.number)))
            raise
        core.ledger.submit(end)
    await core.ledger.flush()


def _claim(core: Core, tx: BusTransaction, endpoint: Endpoint, ids: list[str]) -> set[str]:
    """Claim the messages that are stored and that no process works on; none if the endpoint is served."""
    if _is_served(core, tx, endpoint):
        return set()
    mailbox, instance = core.directory.mailbox(endpoint.hash), core.instance.number
    return {
        id_
        for id_ in ids
        if settling.settle_file(tx, endpoint, mailbox, "new", id_, instance).status is settling.FileStatus.READY
        and tx.claim(endpoint.number, id_, instance) is not None
    }
