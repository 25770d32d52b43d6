"""The copy that a follower keeps: a store that changes only through the leader's transactions, in order.

The position of the copy is a row of the copy itself and moves in the transaction that applies a group, so the copy is
the leader's store after some transaction at every moment, also after a kill. A group that does not fit raises
copy_invalid and changes nothing. Triggers and foreign keys are off, because a group already contains their effects. A
copy is replaced only by a complete new one. It has mode 0600, as the store has.

A promoted copy is the store of a relay. It may lack the leader's last transactions, as a backup does, so the same rules
apply as after a restore: cursors past the copy get cursor_reset, old leases lose their tokens, invites are void. The
new epoch begins while the file still has the name of a copy; only after that is it renamed to relay.db. A kill in
between leaves a copy that neither follows nor serves until the promotion runs again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from posthouse.files import FILE_MODE, fsync_dir, open_nofollow, read_private
from posthouse.journal.restore import restore_in_place
from posthouse.journal.store import JOURNAL
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.relay.ops.maintenance import adjust_restored, write_mark
from posthouse.relay.store.high_water import MarkFile
from posthouse.relay.store.sqlite.recording import FOLLOW_SQL, read_position
from posthouse.relay.store.sqlite.store import COMPONENTS, COPY_NAME, FILE_NAME
from posthouse.relay.wire.change_groups import ChangeGroup, StreamPosition, next_digest
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.schema import check_known_schema

_CHECKPOINT_PAGES = 4_000
LEADER_NAME = "follower.json"


class Leader(msgspec.Struct, frozen=True):
    """The relay that a directory follows, kept in follower.json."""

    url: str
    #: its node id
    relay: str


def read_leader(directory: Path) -> Leader | None:
    """Return the relay that a directory follows, None if that is not known."""
    try:
        return msgspec.json.decode(read_private(directory / LEADER_NAME), type=Leader)
    except (OSError, msgspec.DecodeError):
        return None


class FollowedCopy:
    """An open copy."""

    def __init__(self, path: Path) -> None:
        """Open the copy at `path`; raise if its schema is unknown here, or if it is promoted."""
        check_known_schema(path, (JOURNAL, *COMPONENTS))
        self.path = path
        self._db = open_writer(path, Durability.FULL)
        try:
            self._db.pragma("foreign_keys", False)
            self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            self._db.pragma("wal_autocheckpoint", _CHECKPOINT_PAGES)
            position = read_position(self._db)
            if position is None:
                raise error("copy_promoted", path=str(path))
            self.position = position
            self.head: int = self._row()[3]
            self._db.execute(FOLLOW_SQL.clear_changesets)  # the leader's: a copy has no followers
        except apsw.Error as fault:
            self._db.close()
            raise _invalid(path, fault) from fault
        except BaseException:
            self._db.close()
            raise

    def apply(self, groups: Sequence[ChangeGroup]) -> None:
        """Apply groups in one transaction; raise copy_invalid, and change nothing, if one does not fit."""
        position = self.position
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for group in groups:
                position = self._apply_one(position, group)
            self._db.execute(FOLLOW_SQL.advance, (groups[-1].head, position.number, position.digest))
            self._db.execute("COMMIT")
        except apsw.FullError as fault:
            self._roll_back()
            raise error("store_full", path=str(self.path), reason=str(fault)) from fault
        except apsw.Error as fault:
            self._roll_back()
            raise _invalid(self.path, fault) from fault
        except BaseException:
            self._roll_back()
            raise
        self.position, self.head = position, groups[-1].head

    def close(self) -> None:
        """Close the copy; everything is in one file then."""
        self._db.close()

    def _apply_one(self, position: StreamPosition, group: ChangeGroup) -> StreamPosition:
        number = position.number + 1
        if group.number != number or group.digest != next_digest(position.digest, number, group.changeset):
            raise error("copy_invalid", path=str(self.path), reason=f"the group {group.number} does not follow")
        apsw.Changeset.apply(group.changeset, self._db, flags=apsw.SQLITE_CHANGESETAPPLY_NOSAVEPOINT)
        return StreamPosition(position.stream, number, group.digest)

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _row(self) -> Any:
        return self._db.execute(FOLLOW_SQL.position).fetchone()


async def replace_copy(directory: Path, pieces: AsyncIterator[bytes]) -> FollowedCopy:
    """Write a new copy next to the old one, check it, and replace the old one, which must be closed."""
    fresh = directory / f".{COPY_NAME}.{secrets.token_hex(8)}.tmp"
    target = directory / COPY_NAME
    try:
        with os.fdopen(open_nofollow(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
            async for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        FollowedCopy(fresh).close()
        _remove_wal(target)
        fresh.rename(target)
        fsync_dir(directory)
    finally:
        _remove_wal(fresh)
        fresh.unlink(missing_ok=True)
    return FollowedCopy(target)


def remove_partial_copies(directory: Path) -> None:
    """Remove copies that a killed follower did not complete; the lock of the directory proves that none is running."""
    for leftover in directory.glob(f".{COPY_NAME}.*.tmp*"):
        leftover.unlink(missing_ok=True)


def promote_copy(directory: Path, clock: Clock, mark_file: MarkFile) -> str:
    """Make the copy in a directory, whose lock the caller holds, the store of a relay; return the new epoch."""
    copy, target = directory / COPY_NAME, directory / FILE_NAME
    if not copy.exists():
        raise error("usage", text=f"there is no copy {copy}", hint="Give the directory of `posthouse relay follow`.")
    if target.exists():
        raise error("store_exists", path=str(target))

    def adjust(db: apsw.Connection) -> None:
        adjust_restored(db, clock)
        db.execute(FOLLOW_SQL.end_stream)

    epoch = restore_in_place(copy, (JOURNAL, *COMPONENTS), clock, adjust)
    copy.rename(target)
    fsync_dir(directory)
    write_mark(mark_file, target, clock)
    (directory / LEADER_NAME).unlink(missing_ok=True)
    return epoch


def _remove_wal(path: Path) -> None:
    """Remove the WAL of a former database of this name, which SQLite would apply to the new one."""
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _invalid(path: Path, fault: apsw.Error) -> Exception:
    return error("copy_invalid", path=str(path), reason=str(fault))
