"""Redelivery of the messages that a process has taken but not finished.

They go back to new/, where any server finds them. Invariants: only messages of dead or departed processes are delivered
again; a message that was in cur/ counts an attempt (its first start counts none); after `max_attempts` it is a dead
letter, and its last attempt runs alone in its process, so that a message that crashes the process takes no other with
it. A dead letter without its record is completed, not delivered: a message is either done or dead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from posthouse.bus.core import Core
from posthouse.bus.letter_counts import add_found_letter
from posthouse.bus.maildir import Mailbox
from posthouse.bus.results import Endpoint
from posthouse.bus.settling import (
    ENDS,
    FileStatus,
    dead_letter_body,
    endpoint_fields,
    find_last_record,
    is_message_id,
    release_reservation,
    settle_file,
)
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.envelope import decode_dead_letter
from posthouse.model.errors import PosthouseError

log = get_log(__name__)
#: paths inside a mailbox that the caller removes after the commit
Leftovers = list[str]


def exhausted_reason(max_attempts: int) -> str:
    """Return the reason of a dead letter whose message was started as often as allowed."""
    times = "once" if max_attempts == 1 else f"{max_attempts} times"
    return f"started {times} and never finished: its process ended each time"


def redeliver_all(core: Core, tx: BusTransaction, endpoint: Endpoint, mailbox: Mailbox) -> Leftovers:
    """Give back everything in cur/, because no process serves the endpoint; complete interrupted dead letters."""
    leftovers: Leftovers = []
    for name in mailbox.names("cur"):
        settled = settle_file(tx, endpoint, mailbox, "cur", name, core.instance.number)
        if settled.status is FileStatus.READY:
            leftovers += redeliver(tx, endpoint, mailbox, name)
        elif settled.status is FileStatus.ENDED:
            leftovers.append(f"cur/{name}")
        elif settled.status is FileStatus.INVALID:
            mailbox.move(f"cur/{name}", f"new/{name}")  # the server makes a dead letter of it
    for name in set(mailbox.names("failed")).intersection(mailbox.names("new")):
        leftovers += _complete_dead_letter(tx, endpoint, mailbox, name, f"new/{name}")
    return leftovers


def redeliver_claims(tx: BusTransaction, endpoint: Endpoint, mailbox: Mailbox, ids: Iterable[str]) -> Leftovers:
    """Give back the messages that a dead process of a group had claimed."""
    return [path for id_ in ids for path in redeliver(tx, endpoint, mailbox, id_)]


def redeliver(tx: BusTransaction, endpoint: Endpoint, mailbox: Mailbox, id_: str) -> Leftovers:
    """Give back one stored message of a process that has ended."""
    in_cur, in_new = mailbox.has(f"cur/{id_}"), mailbox.has(f"new/{id_}")
    completed = _complete_dead_letter(tx, endpoint, mailbox, id_, f"{'cur' if in_cur else 'new'}/{id_}")
    if completed:
        return completed
    if in_cur:
        attempt = tx.db.execute(SQL.count_attempt, (endpoint.number, id_)).get
        tx.journal.append("bus.redelivered", ref=id_, body=endpoint_fields(endpoint) | {"attempt": attempt})
        mailbox.move(f"cur/{id_}", f"new/{id_}")
    elif in_new:  # claimed, never started
        tx.db.execute(SQL.unclaim_mail, (endpoint.number, id_))
        announce_again(mailbox, id_)
    elif release_reservation(tx, endpoint.number, id_) is not None:
        body = dead_letter_body(endpoint, None, id_, "its file is gone")
        tx.journal.append("bus.dead", ref=id_, body=body)
    return []


def announce_again(mailbox: Mailbox, id_: str) -> None:
    """Make inotify report a file of new/ again, to the servers that left it to another process."""
    try:
        os.close(os.open(f"new/{id_}", os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=mailbox.fd))
    except OSError:  # gone, or not a file: there is nothing to report
        return


def _complete_dead_letter(tx: BusTransaction, endpoint: Endpoint, mailbox: Mailbox, id_: str, path: str) -> Leftovers:
    """Record the dead letter that a process wrote before it ended; the file of the message is then a leftover."""
    try:
        letter = decode_dead_letter(mailbox.read(f"failed/{id_}"))
    except (OSError, PosthouseError):  # not a dead letter: the message has not failed
        return []
    if release_reservation(tx, endpoint.number, id_) is None:
        return []
    add_found_letter(tx, endpoint.number, mailbox, id_, letter)
    body = dead_letter_body(endpoint, letter.envelope, id_, letter.reason)
    actor = None if letter.envelope is None else letter.envelope.from_
    tx.journal.append("bus.dead", actor=actor, ref=id_, body=body)
    return [path]


def release_server(tx: BusTransaction, endpoint: Endpoint, instance: int) -> bool:
    """Remove a process from the servers of an endpoint; return True if it was the last."""
    tx.db.execute(SQL.remove_server, (endpoint.number, instance))
    was_server = tx.db.changes() == 1
    counters = tx.endpoint(endpoint.number)
    if not was_server or counters is None or tx.db.execute(SQL.is_served, (endpoint.number,)).get:
        return False
    counters.is_served = False
    tx.journal.append("bus.left", ref=endpoint.subject, body=endpoint_fields(endpoint))
    return True


def release_dead_server(core: Core, tx: BusTransaction, endpoint: Endpoint, instance: int) -> Leftovers:
    """Remove a dead process from the servers of an endpoint and give back the messages that it had taken."""
    was_last = release_server(tx, endpoint, instance)
    mailbox = core.directory.find_mailbox(endpoint.hash)
    if mailbox is None:
        return []
    claims: Any = tx.db.execute(SQL.claims_on_endpoint, (instance, endpoint.number)).fetchall()
    leftovers = redeliver_claims(tx, endpoint, mailbox, [id_ for (id_,) in claims])
    if was_last:
        return leftovers + redeliver_all(core, tx, endpoint, mailbox)
    return leftovers + find_ended(tx, endpoint, mailbox)


def find_ended(tx: BusTransaction, endpoint: Endpoint, mailbox: Mailbox) -> Leftovers:
    """Find files in cur/ of messages that have ended: their process was killed before it removed them.

    They have no row, so no claim leads to them. Files of living processes may be among them: removing one is harmless.
    """
    return [
        f"cur/{name}"
        for name in mailbox.names("cur")
        if tx.db.execute(SQL.mail_row, (endpoint.number, name)).fetchone() is None
        and is_message_id(name)
        and find_last_record(tx, endpoint, name) in ENDS
    ]


def remove_leftovers(core: Core, endpoint: Endpoint, leftovers: Leftovers) -> None:
    """Remove the files of messages whose end is committed."""
    mailbox = core.directory.find_mailbox(endpoint.hash) if leftovers else None
    if mailbox is None:
        return
    for path in leftovers:
        try:
            mailbox.remove(path)
        except OSError as failure:  # the next server finds it again
            log.error("leftover_stays", path=str(mailbox.path / path), reason=str(failure))
