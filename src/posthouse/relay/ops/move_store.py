"""Move a relay's store between a SQLite file and a database of PostgreSQL.

A moved store keeps its epoch and its seqs, so cursors of readers and of the lake stay valid. Just before the new store
becomes visible, the old one gets a mark, and no relay starts on it any more. So a crash leaves either the old store as
it was, or two stores of which at most the new one starts. Run again, an interrupted move finishes, and a finished one
changes nothing. A store is only replaced by one that continues its history.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import apsw
import psycopg

from posthouse.files import private_dir
from posthouse.journal.cursor import Extent
from posthouse.journal.read import read_extent
from posthouse.journal.restore import migrate_file, replacement
from posthouse.journal.verify import verify_database
from posthouse.model.errors import error
from posthouse.postgresql.server_connection import ServerConnection, translate
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.ops.server_copy import FILE_COMPONENTS, open_unused, write_file
from posthouse.relay.ops.table_copy import Digests, copy_to_server, total_digest
from posthouse.relay.store.high_water import MovedTo
from posthouse.relay.store.postgresql.pg_journal import MOVING_SQL, read_stored
from posthouse.relay.store.sqlite.queries import EVENTS_SQL
from posthouse.relay.store.sqlite.store import find_moved, read_moved, stored_extent
from posthouse.sqlite.connection import Durability, open_writer, safe_path
from posthouse.sqlite.connection import translate as translate_file
from posthouse.sqlite.store_lock import StoreLock, refuse_half_restored


@dataclass(frozen=True)
class Moved:
    """A store at its new location."""

    extent: Extent
    #: of each table; None: the store had been moved before
    digests: Digests | None

    @property
    def digest(self) -> str | None:
        """One digest for all tables."""
        return None if self.digests is None else total_digest(self.digests)


@dataclass(frozen=True)
class Side:
    """A store, or the place of one, before a move."""

    place: MovedTo
    #: None: there is no store
    extent: Extent | None
    moved: MovedTo | None


def needs_copy(source: Side, target: Side) -> bool:
    """Return False if the store was moved to the target before; raise if the source or the target does not allow it."""
    extent, found = source.extent, target.extent
    if extent is None:
        raise error("usage", text=f"there is no store {source.place.target}")
    if source.moved is not None and source.moved.place != target.place.place:
        raise error("store_moved", path=source.place.target, target=source.moved.target)
    if found is None:
        return True
    if source.moved is not None and target.moved is None and _continues(found, extent):
        return False
    if target.moved is not None and _continues(extent, found):
        return True
    hint = "Give an empty database, or a file that does not exist. A store that was moved can be moved back."
    raise error("store_exists", path=target.place.target, hint=hint)


def _continues(later: Extent, earlier: Extent) -> bool:
    """Return True if one history begins with all of another."""
    if later.epoch == earlier.epoch:
        return earlier.head <= later.head
    return earlier.head <= dict(later.ancestors).get(earlier.epoch, -1)


def move_to_server(file: Path, url: str) -> Moved:
    """Move the store in a file to a database; neither may be in use."""
    file = safe_path(file)
    if not file.exists():
        raise error("usage", text=f"there is no store {file}", hint="Give the file relay.db of the relay's directory.")
    lock = StoreLock(file, exclusive=True)
    try:
        refuse_half_restored(file)
        migrate_file(file, FILE_COMPONENTS)
        db = open_writer(file, Durability.FULL)
        try:
            with open_unused(url) as session:
                return _to_server(db, file, session, url)
        except apsw.Error as exc:
            raise translate_file(exc, str(file)) from exc
        finally:
            db.close()
    finally:
        lock.close()


def _to_server(db: apsw.Connection, file: Path, session: ServerConnection, url: str) -> Moved:
    extent = read_extent(db)
    source = Side(_place_of(file), extent, read_moved(db))
    target = _side_on(session, url)
    if not needs_copy(source, target):
        return Moved(target.extent or extent, None)
    if findings := list(verify_database(db)):
        raise error("store_corrupt", path=str(file), reason="; ".join(findings[:3]))
    session.queue("BEGIN")
    digests = copy_to_server(db, session)
    _require_same_extent(extent, read_stored(session).extent)
    db.execute(EVENTS_SQL.set_moved, target.place)  # before COMMIT: whatever fails from here, the file does not start
    session.queue("COMMIT")
    return Moved(extent, digests)


def move_to_file(url: str, file: Path) -> Moved:
    """Move the store in a database to a file; neither may be in use."""
    file = safe_path(private_dir(file.parent) / file.name)
    lock = StoreLock(file, exclusive=True)
    try:
        refuse_half_restored(file)
        target = Side(_place_of(file), stored_extent(file), find_moved(file))
        with open_unused(url) as session:
            source = _side_on(session, url)
            if not needs_copy(source, target) or source.extent is None:
                assert target.extent is not None
                return Moved(target.extent, None)
            with replacement(file) as fresh:
                session.queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                digests = write_file(session, fresh)
                session.queue("COMMIT")
                _require_same_extent(source.extent, stored_extent(fresh))
                session.queue(MOVING_SQL.set_moved, *target.place)  # before the swap: from now on the database is old
            return Moved(source.extent, digests)
    except psycopg.Error as exc:
        raise translate(exc, url) from exc
    finally:
        lock.close()


def _require_same_extent(source: Extent, copy: Extent | None) -> None:
    if copy != source:
        raise error("copy_differs", table="journal", rows=source.head, copied=0 if copy is None else copy.head)


def _place_of(file: Path) -> MovedTo:
    return MovedTo(str(file), str(file))


def _side_on(session: ServerConnection, url: str) -> Side:
    found = read_stored(session)
    return Side(MovedTo(shown_url(url), session.value(MOVING_SQL.place)), found.extent, found.moved)
