"""Epochs: the random names of a store's histories. A restore begins a new one where the backup ended."""

from __future__ import annotations

import secrets

import apsw

from posthouse.journal.append import SQL


def begin_first_epoch(db: apsw.Connection, wall_ns: int) -> None:
    """Name the history of a new store; harmless when another process does so at the same moment."""
    if db.execute(SQL.current_epoch).fetchone():
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if not db.execute(SQL.current_epoch).fetchone():
            db.execute(SQL.add_epoch, (secrets.token_hex(16), None, 0, wall_ns))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def fork_epoch(db: apsw.Connection, wall_ns: int) -> str:
    """Begin a new epoch at the head of this (restored) store, inside the caller's transaction."""
    parent, _, _ = db.execute(SQL.current_epoch).fetchone() or (None, None, 0)
    epoch = secrets.token_hex(16)
    db.execute(SQL.add_epoch, (epoch, parent, db.execute(SQL.head).get, wall_ns))
    return epoch
