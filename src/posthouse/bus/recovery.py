"""Recovery of what dead processes left, so that depths equal files and every message has its record.

A reservation of a dead process is closed if its file exists and released if not; a file in new/ whose commit it did not
reach gets its row and record; its claims are delivered again; its temporary files are removed. A process is dead if its
lock in procs/ can be taken. The files are the source of truth: after a reboot bus.db may be older than they are, and if
it was lost it is empty. In both cases every mailbox is reconciled (files without a row are adopted, rows without a file
deleted, dead letters counted); if bus.db was lost, the endpoints are first restored from their endpoint.json. The
mailbox of an endpoint whose removal was interrupted is removed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import msgspec

from posthouse.bus.core import Core
from posthouse.bus.data_directory import UNROUTED, endpoint_hash, is_alive
from posthouse.bus.endpoints import insert_endpoint, read_description, remove_mailbox, unregister
from posthouse.bus.letter_counts import add_found_letter, recount_all
from posthouse.bus.maildir import Mailbox
from posthouse.bus.redelivery import Leftovers, redeliver_all, redeliver_claims, release_dead_server, remove_leftovers
from posthouse.bus.results import Endpoint
from posthouse.bus.serving import EndpointServers
from posthouse.bus.settling import FileStatus, dead_letter_body, release_reservation, settle_file
from posthouse.bus.transaction import SQL, BusTransaction, MailState
from posthouse.log import get_log
from posthouse.model.envelope import decode_dead_letter
from posthouse.model.errors import PosthouseError
from posthouse.model.subjects import REPLIES
from posthouse.sqlite.connection import open_reader, skip_checkpoint_on_close
from posthouse.sqlite.store_lock import StoreLock

log = get_log(__name__)


class Recovered(msgspec.Struct):
    """What a full recovery has done."""

    #: endpoints that were restored from their endpoint.json
    endpoints: int = 0
    #: messages that wait now
    messages: int = 0


def set_damaged_aside(root: Path, now_s: int) -> Path | None:
    """Rename a bus.db that is not a sound database; return its new name, or None if bus.db is sound or missing.

    Raise store_in_use if a process has the bus open. Nothing is deleted.
    """
    path = root / "bus.db"
    if not path.exists():
        return None
    lock = StoreLock(path, exclusive=True)
    try:
        if _is_sound(path):
            return None
        aside = path.with_name(f"{path.name}.damaged-{now_s}")
        for suffix in ("-wal", "-shm", ""):
            file = path.with_name(path.name + suffix)
            if file.exists():
                file.rename(aside.with_name(aside.name + suffix))
        return aside
    finally:
        lock.close()


def _is_sound(path: Path) -> bool:
    try:
        db = open_reader(path)
    except (apsw.Error, PosthouseError):
        return False
    try:
        return bool(db.pragma("quick_check") == "ok")
    except apsw.Error:
        return False
    finally:
        skip_checkpoint_on_close(db)
        db.close()


async def recover(core: Core, servers: EndpointServers) -> bool:
    """Recover on opening; return True if the index has to be rebuilt, because bus.db may have lost records."""
    await sweep_dead_processes(core, servers)
    boot_id = await core.ledger.run(lambda tx: tx.db.execute(SQL.boot_id).get)
    if boot_id != core.clock.boot_id:
        await reconcile_all(core, is_new=boot_id is None)
    elif not await core.ledger.run(lambda tx: tx.db.execute(SQL.has_letters).get):
        await recount_all(core)
    await sweep_temporary_files(core)
    await sweep_removed_mailboxes(core)
    return boot_id not in (None, core.clock.boot_id)


async def sweep_dead_processes(core: Core, servers: EndpointServers) -> None:
    """Close or release the reservations of every dead process, and remove its reply endpoint."""
    rows: Any = await core.store.pool.run(lambda db: db.execute(SQL.instances).fetchall())
    dead = [row for row in rows if row[0] != core.instance.number and not is_alive(core.directory.procs, row[1])]
    if dead:
        await _adopt_unrecorded(core)
    for number, name in dead:
        await _sweep_process(core, servers, number)
        (core.directory.procs / name).unlink(missing_ok=True)


async def _adopt_unrecorded(core: Core) -> None:
    """Record the messages whose publisher died between moving their files to new/ and its commit."""
    registry = await core.ledger.run(lambda tx: tx.registry)
    for endpoint in list(registry.by_number.values()):
        mailbox = core.directory.find_mailbox(endpoint.hash)
        names = [] if mailbox is None else mailbox.names("new")
        if names:
            await core.ledger.run(lambda tx, to=endpoint, names=names: _adopt(core, tx, to, names))  # type: ignore[misc]
        await asyncio.sleep(0)


def _adopt(core: Core, tx: BusTransaction, endpoint: Endpoint, names: list[str]) -> None:
    mailbox = core.directory.find_mailbox(endpoint.hash)
    if mailbox is None:
        return
    rows: Any = tx.db.execute(SQL.mail_of_endpoint, (endpoint.number,)).fetchall()
    for name in sorted(set(names).difference(row[0] for row in rows)):
        settle_file(tx, endpoint, mailbox, "new", name, core.instance.number)


async def _sweep_process(core: Core, servers: EndpointServers, number: int) -> None:
    leftovers: list[tuple[Endpoint, Leftovers]] = []
    private = await core.ledger.run(lambda tx: _sweep_instance(core, tx, number, leftovers))
    for endpoint, paths in leftovers:
        remove_leftovers(core, endpoint, paths)
    for endpoint in private:
        try:
            await unregister(core, servers, endpoint, force=True)
        except (OSError, PosthouseError):  # another process is removing it
            continue


def _sweep_instance(
    core: Core, tx: BusTransaction, number: int, leftovers: list[tuple[Endpoint, Leftovers]]
) -> list[Endpoint]:
    """Delete a dead instance; return its reply endpoints, which remain to be unregistered."""
    leftovers.clear()
    mail: Any = tx.db.execute(SQL.open_mail_of_instance, (number,)).fetchall()
    for endpoint_number, id_, state in mail:
        _sweep_reservation(core, tx, endpoint_number, id_, state)
    served: Any = tx.db.execute(SQL.served_by, (number,)).fetchall()
    for (endpoint_number,) in served:
        endpoint = tx.registry.by_number.get(endpoint_number)
        if endpoint is not None:
            leftovers.append((endpoint, release_dead_server(core, tx, endpoint, number)))
    tx.db.execute(SQL.remove_servers_of_instance, (number,))
    leftovers += _release_claims(core, tx, number)
    private: Any = tx.db.execute(SQL.private_endpoints, (number,)).fetchall()
    tx.db.execute(SQL.remove_instance, (number,))
    return [Endpoint(*row) for row in private]


def _release_claims(core: Core, tx: BusTransaction, number: int) -> list[tuple[Endpoint, Leftovers]]:
    """Give back messages that a dead process claimed without serving the endpoint: a poller claims expired ones."""
    claims: Any = tx.db.execute(SQL.claims_of_instance, (number,)).fetchall()
    found = []
    for endpoint_number, id_ in claims:
        endpoint = tx.registry.by_number.get(endpoint_number)
        mailbox = None if endpoint is None else core.directory.find_mailbox(endpoint.hash)
        if endpoint is not None and mailbox is not None:
            found.append((endpoint, redeliver_claims(tx, endpoint, mailbox, [id_])))
    return found


def _sweep_reservation(core: Core, tx: BusTransaction, number: int, id_: str, state: int) -> None:
    endpoint = tx.registry.by_number.get(number)
    mailbox = core.directory.find_mailbox(UNROUTED if endpoint is None else endpoint.hash)
    if mailbox is not None:
        mailbox.remove(f"tmp/{id_}")
    if state == MailState.REFUSED:
        _sweep_refused(tx, endpoint, mailbox, number, id_)
        return
    status = FileStatus.ABSENT
    if endpoint is not None and mailbox is not None:
        for folder in ("new", "cur"):
            if status is FileStatus.ABSENT:
                status = settle_file(tx, endpoint, mailbox, folder, id_, core.instance.number).status
    if status is FileStatus.ABSENT:
        release_reservation(tx, number, id_)


def _sweep_refused(
    tx: BusTransaction, endpoint: Endpoint | None, mailbox: Mailbox | None, number: int, id_: str
) -> None:
    """Record the dead letter of a refused message if its file was written."""
    tx.db.execute(SQL.remove_mail, (number, id_))
    try:
        dead_letter = None if mailbox is None else decode_dead_letter(mailbox.read(f"failed/{id_}"))
    except (OSError, PosthouseError):
        return
    if mailbox is None or dead_letter is None or dead_letter.envelope is None:
        return
    add_found_letter(tx, number, mailbox, id_, dead_letter)
    envelope = dead_letter.envelope
    owner = endpoint or Endpoint(number, UNROUTED, envelope.subject, None, "")
    body = dead_letter_body(owner, envelope, id_, dead_letter.reason)
    tx.journal.append("bus.dead", actor=envelope.from_, ref=id_, body=body)


# mailboxes


async def reconcile_all(core: Core, *, is_new: bool) -> Recovered:
    """Make rows and files agree; with a new bus.db restore the endpoints first.

    If a process serves one of the mailboxes, the next process that opens the bus reconciles all again.
    """
    done = Recovered()
    if is_new:
        done.endpoints = await _restore_endpoints(core)
    are_all_done = True
    for endpoint in list(core.ledger.registry.by_number.values()):
        are_all_done &= await _reconcile(core, endpoint, done)
    await recount_all(core)
    if are_all_done:
        await core.ledger.run(lambda tx: tx.db.execute(SQL.set_boot_id, (core.clock.boot_id,)))
    if done.endpoints:
        log.warning("bus_restored_from_files", **msgspec.structs.asdict(done))
    return done


async def _restore_endpoints(core: Core) -> int:
    """Register the endpoints whose mailboxes have an endpoint.json; return how many."""
    count = 0
    for hash_ in core.directory.hashes():
        found = read_description(core, hash_)
        if found is None or endpoint_hash(found.subject) != hash_:
            continue
        if found.subject.startswith(REPLIES):  # the reply endpoint of a process does not outlive it
            continue
        row = (hash_, found.subject, found.owner, found.registered_at)
        await core.ledger.run(lambda tx, row=row: insert_endpoint(tx, *row))  # type: ignore[misc]
        count += 1
    await core.ledger.run(lambda tx: tx.registry)  # loads what was inserted
    return count


async def _reconcile(core: Core, endpoint: Endpoint, done: Recovered) -> bool:
    """Make the rows and files of a mailbox agree; return False if a process serves it."""
    leftovers = await core.ledger.run(lambda tx: _reconcile_rows(core, tx, endpoint, done))
    remove_leftovers(core, endpoint, leftovers or [])
    return leftovers is not None


def _reconcile_rows(core: Core, tx: BusTransaction, endpoint: Endpoint, done: Recovered) -> Leftovers | None:
    mailbox = core.directory.find_mailbox(endpoint.hash)
    if mailbox is None:
        return []
    if tx.db.execute(SQL.is_served, (endpoint.number,)).get:
        return None
    leftovers = redeliver_all(core, tx, endpoint, mailbox)
    names = mailbox.names("new")
    present, living = set(names), _living_instances(core, tx)
    rows: Any = tx.db.execute(SQL.mail_of_endpoint, (endpoint.number,)).fetchall()
    for id_, state, instance in rows:
        is_being_written = state == MailState.RESERVED and instance in living
        if id_ not in present and state != MailState.REFUSED and not is_being_written:
            release_reservation(tx, endpoint.number, id_)
    for name in names:
        status = settle_file(tx, endpoint, mailbox, "new", name, core.instance.number).status
        done.messages += status is FileStatus.READY
        if status is FileStatus.ENDED:
            leftovers.append(f"new/{name}")
    return leftovers


def _living_instances(core: Core, tx: BusTransaction) -> set[int]:
    rows: Any = tx.db.execute(SQL.instances).fetchall()
    return {number for number, name in rows if is_alive(core.directory.procs, name)}


async def sweep_removed_mailboxes(core: Core) -> None:
    """Complete the removal of endpoints whose process died while it unregistered them."""
    registry = await core.ledger.run(lambda tx: tx.registry)
    for hash_ in core.directory.hashes():
        found = None if hash_ in registry.by_hash else read_description(core, hash_)
        if found is None or endpoint_hash(found.subject) != hash_:  # known, being created, or not ours
            continue
        try:
            await remove_mailbox(core, Endpoint(0, hash_, found.subject, found.owner, found.registered_at))
        except (OSError, PosthouseError) as failure:  # damaged, or another process is removing it
            log.warning("mailbox_not_removed", path=str(core.directory.path_of(hash_)), reason=str(failure))


async def sweep_temporary_files(core: Core) -> None:
    """Remove temporary files that no process is writing."""
    registry = await core.ledger.run(lambda tx: tx.registry)
    for endpoint in list(registry.by_number.values()):
        await _sweep_tmp(core, endpoint.number, endpoint.hash)
    await _sweep_tmp(core, 0, UNROUTED)


async def _sweep_tmp(core: Core, number: int, hash_: str) -> None:
    """Keep files whose reservation is open, and files whose name ends with the name of a living process."""
    mailbox = core.directory.find_mailbox(hash_)
    names = [] if mailbox is None else mailbox.names("tmp")
    if not names:
        return
    rows: Any = await core.ledger.run(lambda tx: tx.db.execute(SQL.open_mail, (number,)).fetchall())
    reserved = {id_ for (id_,) in rows}
    writers = {name.partition(".")[2] for name in names} - {""}
    living = {writer for writer in writers if is_alive(core.directory.procs, writer)}
    mailbox = core.directory.find_mailbox(hash_)  # again: it may have been closed meanwhile
    for name in names if mailbox is not None else ():
        if name in reserved or name.partition(".")[2] in living:
            continue
        try:
            mailbox.remove(f"tmp/{name}")  # type: ignore[union-attr]
        except OSError:  # a directory, which the bus has not created
            continue
