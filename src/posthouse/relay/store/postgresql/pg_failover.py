"""Which server a store is on, and the consequences of a change of server.

A standby that was promoted, and a dump that was restored, are other servers with the same tables. Records that the
former server had acknowledged may be missing there, so the store begins a new epoch, unless a synchronous standby had
every record of the epoch. An epoch counts as replicated from a commit that waited for the standby: the log is one
sequence, so the standby has all of it. The first group that would not wait begins an epoch that does not count. A
former primary stays writable and an address may still lead to it: a session on a lower timeline than one seen before is
refused.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from posthouse.postgresql.server_connection import ServerConnection
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.store.high_water import ServerTimeline, refuse_old_timeline
from posthouse.storage.sql_files import Statements

FAILOVER_SQL = Statements("posthouse.relay.store.postgresql.schema", "failover.sql")


class ServerIdentity(NamedTuple):
    """A server, by the properties that tell it apart from others."""

    system: str
    timeline: int
    journal_oid: int

    def __str__(self) -> str:
        return f"{self.system}, timeline {self.timeline}"


class EpochRow(NamedTuple):
    """The newest epoch of a store, and the server that it was last written on."""

    epoch: str
    system: str | None
    timeline: int | None
    journal_oid: int | None
    #: whether a synchronous standby has all of its records
    is_replicated: bool

    @property
    def server(self) -> ServerIdentity | None:
        """None: the epoch is older than this column, or was copied from a file."""
        if self.system is None or self.timeline is None or self.journal_oid is None:
            return None
        return ServerIdentity(self.system, self.timeline, self.journal_oid)


class ServerChange(enum.Enum):
    """What the server of a store implies for its newest epoch."""

    NONE = "none"
    """It is the same server."""
    COMPLETE = "complete"
    """It is a promoted standby that has every record: the epoch continues."""
    LOSSY = "lossy"
    """Records may be missing: a new epoch must begin."""


def change_of(row: EpochRow, server: ServerIdentity) -> ServerChange:
    """Return what it implies that an epoch is on this server now."""
    former = row.server
    if former is None or former == server:
        return ServerChange.NONE
    is_promoted = former._replace(timeline=server.timeline) == server and server.timeline > former.timeline
    return ServerChange.COMPLETE if is_promoted and row.is_replicated else ServerChange.LOSSY


class ServerWatch:
    """The newest timeline that the sessions of this process have seen; any thread may use it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: ServerTimeline | None = None

    def check(self, session: ServerConnection) -> ServerIdentity:
        """Return the server of a new session; raise store_timeline_old for a former primary."""
        server = read_server(session)
        newest = ServerTimeline(server.system, server.timeline)
        refuse_old_timeline(self._seen, newest, shown_url(self._url))
        self._seen = newest
        return server


def read_server(session: ServerConnection) -> ServerIdentity:
    """Return the server of a session."""
    found = session.row(FAILOVER_SQL.server)
    assert found is not None
    return ServerIdentity(*found)


def read_epoch_row(session: ServerConnection) -> EpochRow | None:
    """Return the newest epoch, None if there is none."""
    found = session.row(FAILOVER_SQL.current_epoch)
    return None if found is None else EpochRow(*found)
