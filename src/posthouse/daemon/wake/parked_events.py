"""Events that a user's hook failed to handle: they are parked, retried with growing delays, and never skipped.

A parked event keeps the environment of its command, so it does not need the journal. It leaves the table when its
command succeeds, when a person drops it, or with its hook. A hook parks at most PARKED_MAX events; then it stops at its
cursor until there is room, because a command that fails for so many events is broken itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.clock import format_utc
from posthouse.model.limits import SECOND_NS
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.wake", "parked_events.sql")
PARKED_MAX = 1_000
RETRY_FIRST_S, RETRY_MAX_S = 60, 3_600


class ParkedEvent(NamedTuple):
    """One event of one hook."""

    hook: str
    event_id: str
    mesh: str | None
    ref: str | None
    #: JSON object of strings
    environment: str
    attempts: int
    last_exit: int
    parked_at_ns: int
    next_at_ns: int

    @property
    def command_environment(self) -> Mapping[str, str]:
        """The environment of the command."""
        return msgspec.json.decode(self.environment, type=dict[str, str])

    def to_api(self) -> dict[str, Any]:
        """Return the event as the local API shows it."""
        return {
            "hook": self.hook,
            "event_id": self.event_id,
            "event": self.command_environment["POSTHOUSE_EVENT"],
            "mesh": self.mesh,
            "ref": self.ref,
            "attempts": self.attempts,
            "last_exit": self.last_exit,
            "parked_at": format_utc(self.parked_at_ns),
            "next_at": format_utc(self.next_at_ns),
        }


def retry_s(attempts: int, first: int) -> int:
    """Return the seconds until the next attempt; of the `attempts` so far, the first `first` were immediate."""
    return int(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(attempts - first, 10)))


class ParkedEvents:
    """The parked events of one home."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts = store.pool.run_blocking(_read_counts)

    @property
    def total(self) -> int:
        """How many events are parked."""
        return sum(self._counts.values())

    def count(self, hook: str) -> int:
        """Return how many events of a hook are parked."""
        return self._counts.get(hook, 0)

    async def has(self, hook: str, event_id: str) -> bool:
        """Return True if an event of a hook is parked."""
        if not self.count(hook):
            return False
        where = "WHERE hook = ? AND event_id = ?"
        return bool(await self._store.pool.run(lambda db: _read(db, where, hook, event_id)))

    async def list(self) -> Sequence[ParkedEvent]:
        """Return all of them, the oldest first."""
        return await self._store.pool.run(lambda db: _read(db, "ORDER BY parked_at_ns, event_id"))

    async def due(self, hook: str, limit: int) -> Sequence[ParkedEvent]:
        """Return the events of a hook whose time for another attempt has come."""
        if not self.count(hook):
            return ()
        where = "WHERE hook = ? AND next_at_ns <= ? ORDER BY next_at_ns LIMIT ?"
        now_ns = self._store.clock.wall_ns()
        return await self._store.pool.run(lambda db: _read(db, where, hook, now_ns, limit))

    async def park(self, event: ParkedEvent) -> bool:
        """Park an event; return False if its hook has no room for one more."""
        if self.count(event.hook) >= PARKED_MAX:
            return False
        await self._change(SQL.park, event._asdict())
        return True

    async def put_off(self, event: ParkedEvent, last_exit: int, first: int) -> None:
        """Record a failed attempt: the next one waits longer."""
        attempts = event.attempts + 1
        next_at_ns = self._store.clock.wall_ns() + retry_s(attempts, first) * SECOND_NS
        await self._change(
            SQL.put_off, event._replace(attempts=attempts, last_exit=last_exit, next_at_ns=next_at_ns)._asdict()
        )

    async def remove(self, event: ParkedEvent) -> None:
        """Forget an event whose command has succeeded."""
        await self._change(SQL.remove, (event.hook, event.event_id))

    async def retry(self, hook: str) -> None:
        """Schedule the next attempt of every parked event of a hook for now."""
        await self._change(SQL.retry_now, (hook,))

    async def drop(self, hook: str) -> int:
        """Discard the parked events of a hook, on behalf of a person; return how many there were."""
        dropped = await self._store.writer.run(lambda tx: _drop(tx, hook))
        self._counts.pop(hook, None)
        return dropped

    async def keep_only(self, hooks: Sequence[str]) -> None:
        """Delete the events of hooks that no longer exist."""
        await self._change(SQL.drop_others, (msgspec.json.encode(hooks).decode(),))

    async def _change(self, statement: str, given: Mapping[str, Any] | tuple[Any, ...]) -> None:
        def change(tx: JournalTransaction) -> dict[str, int]:
            tx.db.execute(statement, given)
            return _read_counts(tx.db)

        self._counts = await self._store.writer.run(change)


def _read(db: apsw.Connection, where: str, *given: Any) -> list[ParkedEvent]:
    return [ParkedEvent(*row) for row in db.execute(f"{SQL.columns} {where}", given)]


def _read_counts(db: apsw.Connection) -> dict[str, int]:
    return dict(db.execute(SQL.counts))


def _drop(tx: JournalTransaction, hook: str) -> int:
    events = [str(event_id) for (event_id,) in tx.db.execute(SQL.drop, (hook,)).fetchall()]
    if events:
        tx.append("hook.dropped", ref=hook, body={"event_ids": events})
    return len(events)
