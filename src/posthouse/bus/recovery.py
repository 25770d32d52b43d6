"""Recovery of what dead processes left, so that depths equal files and every message has its record.

A reservation of a dead process is closed if its file exists and released if not; its temporary files are removed. A
process is dead when its lock in procs/ can be taken. After a reboot bus.db may be older than the files (its last
commits were not synced): files in cur/ without a row then move back to new/, where they are adopted, and rows
without a file are deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posthouse.bus.admission import REFUSED
from posthouse.bus.data_directory import is_alive
from posthouse.bus.maildir import Mailbox, ServeLock
from posthouse.bus.results import Endpoint
from posthouse.bus.serving import record_unserved
from posthouse.bus.settling import FileStatus, settle_file
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.model.clock import parse_utc
from posthouse.model.envelope import decode_dead_letter
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.rate import window_start_ns

if TYPE_CHECKING:
    from posthouse.bus.session import Session


_RATES_BATCH = 20_000  # rows at a time: more than a busy bus writes between two turns


def recover(session: Session) -> bool:
    """Sweep at opening: the dead, leftovers, and after another boot the mailboxes; return whether there was one."""
    sweep_dead(session)
    boot_id = session.ledger.run(lambda page: page.db.execute(SQL.boot_id).get)
    if boot_id != session.clock.boot_id:
        _reconcile_all(session)
    sweep_temporary_files(session)
    return boot_id not in (None, session.clock.boot_id)


def sweep_dead(session: Session) -> None:
    """Close or give back the reservations of every process that died."""
    rows: Any = session.ledger.run(lambda page: page.db.execute(SQL.instances).fetchall())
    for number, name in rows:
        if number != session.instance.number and not is_alive(session.directory.procs, name):
            _sweep_instance(session, number)
            (session.directory.procs / name).unlink(missing_ok=True)


def _sweep_instance(session: Session, number: int) -> None:
    def work(page: BusTransaction) -> list[Endpoint]:
        rows: Any = page.db.execute(SQL.open_mail_of_instance, (number,)).fetchall()
        for endpoint_number, id_, state in rows:
            _sweep_row(session, page, endpoint_number, id_, state)
        served: Any = page.db.execute(SQL.served_by, (number,)).fetchall()
        for row in served:
            record_unserved(page, Endpoint(*row))
        page.db.execute(SQL.clear_served_by, (number,))
        private: Any = page.db.execute(SQL.private_endpoints, (number,)).fetchall()
        page.db.execute(SQL.remove_instance, (number,))
        return [Endpoint(*row) for row in private]

    for endpoint in session.ledger.run(work):
        _remove_private(session, endpoint)


def _remove_private(session: Session, endpoint: Endpoint) -> None:
    from posthouse.bus.endpoints import unregister

    try:
        unregister(session, endpoint, force=True)
    except (OSError, PosthouseError):  # another process is at it
        return


def _sweep_row(session: Session, page: BusTransaction, number: int, id_: str, state: int) -> None:
    endpoint = page.book.by_number.get(number)
    mailbox = session.find_mailbox("unrouted" if endpoint is None else endpoint.hash)
    if mailbox is not None:
        mailbox.remove(f"tmp/{id_}")
    if state == REFUSED:
        _sweep_letter(page, endpoint, mailbox, number, id_)
        return
    verdict = FileStatus.ABSENT
    if endpoint is not None and mailbox is not None:
        for box in ("new", "cur"):
            if verdict is FileStatus.ABSENT:
                verdict, _ = settle_file(page, endpoint, mailbox, box, id_, session.instance.number)
    if verdict is FileStatus.ABSENT:
        release_reservation(page, number, id_)


def release_reservation(page: BusTransaction, number: int, id_: str) -> None:
    """Drop the row of a message that has no file."""
    page.db.execute(SQL.remove_mail, (number, id_))
    counters = page.endpoint(number) if page.db.changes() == 1 else None
    if counters is not None:
        counters.depth = max(0, counters.depth - 1)
        counters.is_changed = True


def _sweep_letter(
    page: BusTransaction, endpoint: Endpoint | None, mailbox: Mailbox | None, number: int, id_: str
) -> None:
    """Record a refused message's dead letter if it was written; else forget it."""
    page.db.execute(SQL.remove_mail, (number, id_))
    try:
        letter = None if mailbox is None else decode_dead_letter(mailbox.read(f"failed/{id_}"))
    except (OSError, PosthouseError):
        letter = None
    if letter is None or letter.envelope is None or mailbox is None:
        return
    envelope = letter.envelope
    body = {
        "endpoint": envelope.subject if endpoint is None else endpoint.subject,
        "endpoint_hash": mailbox.path.name,
        "subject": envelope.subject,
        "created_at_ms": parse_utc(envelope.created_at) // MILLISECOND_NS,
        "expires_at_ms": envelope.budget.ttl,
        "reason": letter.reason,
    }
    page.tx.append("bus.dead", actor=envelope.from_, ref=id_, body=body)


def _reconcile_all(session: Session) -> None:
    """Reconcile every mailbox; one that somebody holds may be left half done: then the next who opens looks again."""
    done = [_reconcile(session, endpoint) for endpoint in list(session.ledger.book.by_number.values())]
    if all(done):
        session.ledger.run(lambda page: page.db.execute(SQL.set_boot_id, (session.clock.boot_id,)))


def _reconcile(session: Session, endpoint: Endpoint) -> bool:
    """Make rows and files of a mailbox agree after the machine was restarted; return False when it is in use."""
    mailbox = session.find_mailbox(endpoint.hash)
    if mailbox is None:
        return True
    lock = ServeLock(mailbox)
    try:
        if not lock.take():
            return False
        session.ledger.run(lambda page: _reconcile_rows(page, endpoint, mailbox, session.instance.number))
        return True
    finally:
        lock.close()


def _reconcile_rows(page: BusTransaction, endpoint: Endpoint, mailbox: Mailbox, instance: int) -> None:
    rows: Any = page.db.execute(SQL.mail_of_endpoint, (endpoint.number,)).fetchall()
    known = {id_ for id_, _state, _instance in rows}
    for name in mailbox.names("cur"):
        if name not in known:
            mailbox.move(f"cur/{name}", f"new/{name}")
    present = {*mailbox.names("new"), *mailbox.names("cur")}
    for id_, state, _instance in rows:
        if id_ not in present and state != REFUSED:
            release_reservation(page, endpoint.number, id_)
    for name in sorted(present):
        settle_file(page, endpoint, mailbox, "new" if mailbox.has(f"new/{name}") else "cur", name, instance)


def sweep_temporary_files(session: Session) -> None:
    """Remove temporary files nobody is writing any more."""
    for endpoint in list(session.ledger.book.by_number.values()):
        mailbox = session.find_mailbox(endpoint.hash)
        if mailbox is not None:
            _sweep_tmp(session, endpoint.number, mailbox)
    _sweep_tmp(session, 0, session.directory.unrouted)


def _sweep_tmp(session: Session, number: int, mailbox: Mailbox) -> None:
    """A file in tmp/ is in use while its reservation is open, or while the process in its name lives."""
    names = mailbox.names("tmp")
    if not names:
        return
    rows: Any = session.ledger.run(lambda page: page.db.execute(SQL.open_mail, (number,)).fetchall())
    being_written = {id_ for id_, _instance in rows}
    writers = {name.partition(".")[2] for name in names} - {""}
    living = {writer for writer in writers if is_alive(session.directory.procs, writer)}
    for name in names:
        if name in being_written or name.partition(".")[2] in living:
            continue
        try:
            mailbox.remove(f"tmp/{name}")
        except OSError:  # a directory somebody put there: not ours to remove
            continue


def delete_old_rates(page: BusTransaction, session: Session) -> None:
    """Forget publishes that have left their sender's window, a bounded number at a time."""
    horizon_ns = window_start_ns(page.boot_ns, session.policy.reliability.rate_limit)
    left, sender = _RATES_BATCH, page.db.execute(SQL.next_rate_sender, ("",)).get
    while sender is not None and left > 0:
        page.db.execute(SQL.forget_rates, (sender, horizon_ns, left))
        left -= page.db.changes() + 1
        sender = page.db.execute(SQL.next_rate_sender, (sender,)).get
