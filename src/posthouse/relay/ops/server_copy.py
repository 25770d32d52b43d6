"""Copies of a relay's store in PostgreSQL as SQLite files: for backups, checks and exports; and back for restores.

A copy is taken from one snapshot, so it is the store at one commit, and the relays may keep running. The file has the
same form as a backup of a SQLite store, so the same commands verify, check, export and restore it. A restore replaces
the whole store in one transaction, and only while no relay uses the database.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import psycopg

from posthouse.journal.store import JOURNAL
from posthouse.journal.verify import verify_database
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.postgresql.server_connection import ServerConnection, check_server, open_copy_session, translate
from posthouse.postgresql.server_schema import migrate_server, require_schema, wait_for_users
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.ops.maintenance import marked_counter, restore_relay
from posthouse.relay.ops.salvage import Imported, import_relay
from posthouse.relay.ops.table_copy import Digests, copy_to_file, copy_to_server
from posthouse.relay.store.high_water import FILE_NAME as MARK_NAME
from posthouse.relay.store.high_water import HighWater, MarkFile
from posthouse.relay.store.postgresql.pg_epochs import begin_epoch_after_loss
from posthouse.relay.store.postgresql.pg_journal import RELAY_LOCK, read_extent, read_stored
from posthouse.relay.store.postgresql.pg_locks import SQL as LOCKS_SQL
from posthouse.relay.store.postgresql.pg_locks import last_token
from posthouse.relay.store.postgresql.pg_store import COMPONENTS as SERVER_COMPONENTS
from posthouse.relay.store.sqlite.store import COMPONENTS, FILE_NAME
from posthouse.sqlite.backup import new_file
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.connection import translate as translate_file
from posthouse.sqlite.schema import migrate

FILE_COMPONENTS = (JOURNAL, *COMPONENTS)


@contextmanager
def open_unused(url: str) -> Iterator[ServerConnection]:
    """Open a database that no relay uses, and keep relays out; its schema is the newest."""
    check_server(url)
    for component in SERVER_COMPONENTS:
        migrate_server(url, component, RELAY_LOCK)
    session = open_copy_session(url)
    try:
        wait_for_users(session, url, RELAY_LOCK)
        yield session
    except psycopg.Error as exc:
        raise translate(exc, url) from exc
    finally:
        session.close()


def backup_server(url: str, target: Path) -> None:
    """Copy the store of a database to the new file `target`; relays may run."""
    with new_file(target) as temporary:
        copy_server(url, temporary)


@contextmanager
def temporary_copy(url: str) -> Iterator[Path]:
    """Yield a copy of the store of a database, in the directory of TMPDIR; it exists until the block ends."""
    with tempfile.TemporaryDirectory(prefix="posthouse-") as folder:
        path = Path(folder) / FILE_NAME
        copy_server(url, path)
        yield path


def copy_server(url: str, fresh: Path) -> Digests:
    """Write the store of a database as of now to a new file; relays may run."""
    session = open_copy_session(url)
    try:
        session.queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for component in SERVER_COMPONENTS:
            require_schema(session, url, component)
        if read_stored(session).extent is None:
            raise error("usage", text=f"there is no store in {shown_url(url)}")
        return write_file(session, fresh)
    except psycopg.Error as exc:
        raise translate(exc, url) from exc
    finally:
        session.close()


def write_file(session: ServerConnection, fresh: Path) -> Digests:
    """Write the store that an open transaction sees to a new file, as one file without a write-ahead log."""
    db = open_writer(fresh, Durability.NORMAL, may_shrink=True)
    try:
        migrate(db, fresh, FILE_COMPONENTS, keep_backup=False)
        db.pragma("foreign_keys", False)  # tables come in the order of the server; the check below looks at all
        db.execute("BEGIN IMMEDIATE")
        digests = copy_to_file(session, db)
        db.execute("COMMIT")
        if findings := list(verify_database(db)):
            raise error("store_corrupt", path=str(fresh), reason="; ".join(findings[:3]))
        db.pragma("journal_mode", "delete")
    except apsw.Error as exc:
        raise translate_file(exc, str(fresh)) from exc
    finally:
        db.close()
    return digests


def restore_server(backup: Path | None, url: str, clock: Clock, mark_file: MarkFile) -> str:
    """Replace the store of a database with a backup, or continue from the existing one (None); return the new epoch."""
    if backup is None:
        with open_unused(url) as session:
            if read_stored(session).extent is None:
                raise error("usage", text=f"there is no store in {shown_url(url)}")
            session.queue("BEGIN")
            begin_epoch_after_loss(session, clock, marked_counter(mark_file))
            session.queue("COMMIT")
            _write_mark(session, mark_file, clock)
            return read_extent(session).epoch
    with tempfile.TemporaryDirectory(prefix="posthouse-") as folder:
        copy = Path(folder) / FILE_NAME
        epoch = restore_relay(backup, copy, clock)
        fill_server(copy, url, clock, mark_file)
    return epoch


def fill_server(file: Path, url: str, clock: Clock, mark_file: MarkFile) -> None:
    """Replace the store of a database by that of a file in one transaction; fencing tokens never go back."""
    db = open_writer(file, Durability.NORMAL)  # a temporary copy
    try:
        with open_unused(url) as session:
            former = max(last_token(session), marked_counter(mark_file))
            session.queue("BEGIN")
            copy_to_server(db, session)
            session.queue(LOCKS_SQL.raise_counter, former)
            session.queue("COMMIT")
            _write_mark(session, mark_file, clock)
    except apsw.Error as exc:
        raise translate_file(exc, str(file)) from exc
    finally:
        db.close()


def import_to_server(source: Path, url: str, clock: Clock, mark_file: MarkFile) -> Imported:
    """Make the store of an empty database from an export."""
    with open_unused(url) as session:
        if read_stored(session).extent is not None:
            raise error("store_exists", path=shown_url(url))
    with tempfile.TemporaryDirectory(prefix="posthouse-") as folder:
        copy = Path(folder) / FILE_NAME
        summary = asyncio.run(import_relay(source, copy, clock, MarkFile(Path(folder) / MARK_NAME)))
        fill_server(copy, url, clock, mark_file)
    return summary


def _write_mark(session: ServerConnection, mark_file: MarkFile, clock: Clock) -> None:
    """Write a mark for the restored store: a start would refuse it because of the mark of the lost one."""
    extent = read_extent(session)
    mark_file.write(HighWater(extent.epoch, extent.head, last_token(session), clock.boot_id, clock.boot_ns()))
