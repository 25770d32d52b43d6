"""Recovery of what dead processes left, so that depths equal files and every message has its record.

A reservation of a dead process is closed if its file exists and released if not; its temporary files are removed. A
process is dead if its lock in procs/ can be taken. After a reboot bus.db may be older than the files (its last
commits were not synced): files in cur/ without a row then move back to new/, where they are adopted, and rows
without a file are deleted.
"""

from __future__ import annotations

from typing import Any

from posthouse.bus.core import Core
from posthouse.bus.data_directory import UNROUTED, is_alive
from posthouse.bus.endpoints import unregister
from posthouse.bus.maildir import Mailbox, ServeLock
from posthouse.bus.results import Endpoint
from posthouse.bus.serving import EndpointServers, record_unserved
from posthouse.bus.settling import FileStatus, dead_letter_body, release_reservation, settle_file
from posthouse.bus.transaction import SQL, BusTransaction, MailState
from posthouse.model.envelope import decode_dead_letter
from posthouse.model.errors import PosthouseError


def recover(core: Core, servers: EndpointServers) -> bool:
    """Sweep dead processes and their files; after a reboot reconcile all mailboxes. Return True after a reboot."""
    sweep_dead_processes(core, servers)
    boot_id = core.ledger.run(lambda tx: tx.db.execute(SQL.boot_id).get)
    if boot_id != core.clock.boot_id:
        _reconcile_all(core)
    sweep_temporary_files(core)
    return boot_id not in (None, core.clock.boot_id)


def sweep_dead_processes(core: Core, servers: EndpointServers) -> None:
    """Close or release the reservations of every dead process, and remove its reply endpoint."""
    rows: Any = core.ledger.run(lambda tx: tx.db.execute(SQL.instances).fetchall())
    for number, name in rows:
        if number != core.instance.number and not is_alive(core.directory.procs, name):
            for endpoint in core.ledger.run(lambda tx, number=number: _sweep_instance(core, tx, number)):  # type: ignore[misc]
                _remove_reply_endpoint(core, servers, endpoint)
            (core.directory.procs / name).unlink(missing_ok=True)


def _sweep_instance(core: Core, tx: BusTransaction, number: int) -> list[Endpoint]:
    """Delete a dead instance; return its reply endpoints, which remain to be unregistered."""
    mail: Any = tx.db.execute(SQL.open_mail_of_instance, (number,)).fetchall()
    for endpoint_number, id_, state in mail:
        _sweep_reservation(core, tx, endpoint_number, id_, state)
    served: Any = tx.db.execute(SQL.served_by, (number,)).fetchall()
    for row in served:
        record_unserved(tx, Endpoint(*row))
    tx.db.execute(SQL.clear_served_by, (number,))
    private: Any = tx.db.execute(SQL.private_endpoints, (number,)).fetchall()
    tx.db.execute(SQL.remove_instance, (number,))
    return [Endpoint(*row) for row in private]


def _remove_reply_endpoint(core: Core, servers: EndpointServers, endpoint: Endpoint) -> None:
    try:
        unregister(core, servers, endpoint, force=True)
    except (OSError, PosthouseError):  # another process is removing it
        return


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
    if dead_letter is None or dead_letter.envelope is None:
        return
    envelope = dead_letter.envelope
    owner = endpoint or Endpoint(number, UNROUTED, envelope.subject, None, "")
    body = dead_letter_body(owner, envelope, id_, dead_letter.reason)
    tx.journal.append("bus.dead", actor=envelope.from_, ref=id_, body=body)


def _reconcile_all(core: Core) -> None:
    """Reconcile every mailbox; if one is in use, the next process that opens the bus reconciles all again."""
    done = [_reconcile(core, endpoint) for endpoint in list(core.ledger.registry.by_number.values())]
    if all(done):
        core.ledger.run(lambda tx: tx.db.execute(SQL.set_boot_id, (core.clock.boot_id,)))


def _reconcile(core: Core, endpoint: Endpoint) -> bool:
    """Make the rows and files of a mailbox agree after a reboot; return False if the mailbox is in use."""
    mailbox = core.directory.find_mailbox(endpoint.hash)
    if mailbox is None:
        return True
    lock = ServeLock(mailbox)
    try:
        if not lock.take():
            return False
        core.ledger.run(lambda tx: _reconcile_rows(tx, endpoint, mailbox, core.instance.number))
        return True
    finally:
        lock.close()


def _reconcile_rows(tx: BusTransaction, endpoint: Endpoint, mailbox: Mailbox, instance: int) -> None:
    rows: Any = tx.db.execute(SQL.mail_of_endpoint, (endpoint.number,)).fetchall()
    states: dict[str, int] = dict(rows)
    for name in mailbox.names("cur"):
        if name not in states:
            mailbox.move(f"cur/{name}", f"new/{name}")
    present = {*mailbox.names("new"), *mailbox.names("cur")}
    for id_, state in states.items():
        if id_ not in present and state != MailState.REFUSED:
            release_reservation(tx, endpoint.number, id_)
    for name in sorted(present):
        settle_file(tx, endpoint, mailbox, "new" if mailbox.has(f"new/{name}") else "cur", name, instance)


def sweep_temporary_files(core: Core) -> None:
    """Remove temporary files that no process is writing."""
    for endpoint in list(core.ledger.registry.by_number.values()):
        mailbox = core.directory.find_mailbox(endpoint.hash)
        if mailbox is not None:
            _sweep_tmp(core, endpoint.number, mailbox)
    _sweep_tmp(core, 0, core.directory.unrouted)


def _sweep_tmp(core: Core, number: int, mailbox: Mailbox) -> None:
    """Keep files whose reservation is open, and files whose name ends with the name of a living process."""
    names = mailbox.names("tmp")
    if not names:
        return
    rows: Any = core.ledger.run(lambda tx: tx.db.execute(SQL.open_mail, (number,)).fetchall())
    reserved = {id_ for (id_,) in rows}
    writers = {name.partition(".")[2] for name in names} - {""}
    living = {writer for writer in writers if is_alive(core.directory.procs, writer)}
    for name in names:
        if name in reserved or name.partition(".")[2] in living:
            continue
        try:
            mailbox.remove(f"tmp/{name}")
        except OSError:  # a directory, which the bus has not created
            continue
