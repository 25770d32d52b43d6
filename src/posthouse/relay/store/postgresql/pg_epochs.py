"""Begin the epochs of a store on PostgreSQL: the first, and a new one where records may have been lost.

A relay calls `open_epoch` when it starts, under the write lock, before anything else is written: if several relays
start together after a failover, one begins the epoch and the others find it.
"""

from __future__ import annotations

import secrets

from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.lease import first_counter
from posthouse.postgresql.group_transaction import WRITE_LOCK
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.store.high_water import HighWater, ServerTimeline, is_reached, refuse_old_timeline
from posthouse.relay.store.postgresql.pg_failover import (
    FAILOVER_SQL,
    EpochRow,
    ServerChange,
    ServerIdentity,
    change_of,
    read_epoch_row,
)
from posthouse.relay.store.postgresql.pg_journal import JOURNAL_SQL, MOVING_SQL, read_extent
from posthouse.relay.store.postgresql.pg_locks import SQL as LOCKS_SQL
from posthouse.relay.store.postgresql.pg_locks import last_token
from posthouse.relay.store.postgresql.pg_meshes import SQL as MESHES_SQL

log = get_log(__name__)


def open_epoch(db: ServerConnection, server: ServerIdentity, url: str, clock: Clock, mark: HighWater | None) -> str:
    """Return the epoch in which this relay continues; begin one if there is none, or if the server lacks records."""
    with db.pipeline(prepares=False):  # they run once
        db.queue("BEGIN")
        db.queue("SELECT pg_advisory_xact_lock($1)", WRITE_LOCK)
        row = read_epoch_row(db)
        if row is None:
            epoch = secrets.token_hex(16)
            db.queue(JOURNAL_SQL.add_epoch, epoch, None, 0, clock.wall_ns())
        else:
            epoch = _continue_epoch(db, row, server, url, clock, mark)
        if row is None or row.server != server:
            db.queue(FAILOVER_SQL.set_server, epoch, *server)
        db.queue("COMMIT")
    return epoch


def _continue_epoch(
    db: ServerConnection, row: EpochRow, server: ServerIdentity, url: str, clock: Clock, mark: HighWater | None
) -> str:
    former = row.server
    if former is not None:
        seen, now = ServerTimeline(former.system, former.timeline), ServerTimeline(server.system, server.timeline)
        refuse_old_timeline(seen, now, shown_url(url))
    change = change_of(row, server)
    if change is ServerChange.NONE:
        return row.epoch
    if change is ServerChange.COMPLETE and is_reached(mark, read_extent(db)):
        log.info("server_changed", store=shown_url(url), server=str(server), epoch=row.epoch)
        return row.epoch
    epoch = begin_epoch_after_loss(db, clock, 0 if mark is None else mark.token_bound)
    log.warning("epoch_begun", store=shown_url(url), server=str(server), epoch=epoch, former=row.epoch)
    return epoch


def begin_epoch_after_loss(db: ServerConnection, clock: Clock, known_counter: int) -> str:
    """Begin a new epoch, void invites and raise the counter of tokens, inside the caller's transaction.

    The lost records may include uses of invites, and tokens up to `known_counter` or up to now.
    """
    extent = read_extent(db)
    epoch, wall_ns = secrets.token_hex(16), clock.wall_ns()
    db.queue(JOURNAL_SQL.add_epoch, epoch, extent.epoch, extent.head, wall_ns)
    db.queue(MESHES_SQL.void_invites)
    db.queue(MOVING_SQL.clear_moved)
    newest_ns: int = db.value(JOURNAL_SQL.newest_at_ns)
    db.queue(LOCKS_SQL.raise_counter, first_counter(max(last_token(db), known_counter), max(wall_ns, newest_ns)))
    return epoch
