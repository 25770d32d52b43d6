"""Reserved paths: which agent works on which files, so that no two agents edit the same ones.

A reservation holds a real path and everything below it, exclusive or shared, until it expires, it is released, or the
program of its agent has been gone for five minutes. One transaction decides a request: all of its paths are granted, or
none is and the refusal names the holder. An agent never conflicts with itself; reserving a path again replaces its
reservation. Reservations bind agents that ask: nothing here keeps a process from writing a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.journal.append import JournalTransaction
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.clock import Clock, format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS
from posthouse.model.ulid import UlidGenerator
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.agents", "reservations.sql")
GONE_S = 300  # a program that restarts within this time keeps its reservations
FOR_MAX_S = 24 * 3_600
PATHS_MAX = 64
NOTE_MAX_CHARS = 200
PERSON = "a person"
_NO_LOCKS: Mapping[str, str] = {}


class Reservation(NamedTuple):
    """One reserved path."""

    id: str
    agent: str
    path: str
    is_shared: int
    note: str
    made_at_ns: int
    ends_at_ns: int
    ends_boot_ns: int
    boot_id: str
    #: name of the relay's lock, if it has one
    lock: str | None

    @property
    def holder(self) -> str:
        """The agent, as people call it."""
        return self.agent or PERSON

    def left_s(self, clock: Clock) -> int:
        """Return the seconds until the reservation ends."""
        is_this_boot = self.boot_id == clock.boot_id
        left_ns = self.ends_boot_ns - clock.boot_ns() if is_this_boot else self.ends_at_ns - clock.wall_ns()
        return max(0, -(-left_ns // SECOND_NS))

    def to_api(self, clock: Clock) -> dict[str, Any]:
        """Return the reservation as the local API shows it."""
        return {
            "id": self.id,
            "agent": self.agent or None,
            "path": self.path,
            "mode": "shared" if self.is_shared else "exclusive",
            "note": self.note,
            "made_at": format_utc(self.made_at_ns),
            "ends_at": format_utc(self.ends_at_ns),
            "left_s": self.left_s(clock),
            "lock": self.lock,
        }


def real_path(path: str) -> str:
    """Return an absolute path without links and dots; raise reservation_path_invalid for one that is not absolute."""
    if not Path(path).is_absolute() or "\0" in path:
        raise error("reservation_path_invalid", path=path[:200])
    return str(Path(path).resolve())


def is_below(path: str, other: str) -> bool:
    """Return True if a real path equals another one, or is below it."""
    return path == other or path.startswith(other.rstrip("/") + "/")


def overlaps(one: str, other: str) -> bool:
    """Return True if two real paths are the same, or one is below the other."""
    return is_below(one, other) or is_below(other, one)


def find_conflict(path: str, agent: str, *, is_shared: bool, reservations: Iterable[Reservation]) -> Reservation | None:
    """Return a reservation of another agent that keeps this one from working on a path."""
    for held in reservations:
        is_both_shared = is_shared and held.is_shared
        if held.agent != agent and not is_both_shared and overlaps(path, held.path):
            return held
    return None


def conflict_error(path: str, held: Reservation, clock: Clock) -> PosthouseError:
    """Return the refusal that names the holder; only an agent has an address to ask at."""
    hint = None if held.agent else "Work on other files, or wait; `posthouse reserve` lists what is held."
    return error(
        "reservation_conflict",
        hint=hint,
        path=path,
        held=held.path,
        holder=held.holder,
        note=held.note or "no note",
        left_s=held.left_s(clock),
    )


class Reservations:
    """The reservations of one home."""

    def __init__(self, agents: AgentRegistry, clock: Clock) -> None:
        self._agents = agents
        self._store = agents.store
        self._clock = clock
        self._minter = UlidGenerator(clock)
        self._rows = self._store.pool.run_blocking(_read)
        #: agent -> boot time at which its program was first seen gone
        self._gone_since_ns: dict[str, int] = {}
        #: callback(rows) for reservations that have ended
        self.on_end: Callable[[Sequence[Reservation]], None] = lambda _rows: None

    def reload(self) -> None:
        """Read the reservations again, after an agent was renamed."""
        if self._rows:
            self._rows = self._store.pool.run_blocking(_read)

    @property
    def active(self) -> list[Reservation]:
        """The active reservations, by path."""
        return [row for row in self._rows if row.left_s(self._clock) > 0]

    def conflict(self, path: str, agent: str) -> Reservation | None:
        """Return the reservation of another agent that keeps this one from writing a real path.

        Agents that share a path may all write it.
        """
        active = self.active
        is_shared = any(row.agent == agent and row.is_shared and is_below(path, row.path) for row in active)
        return find_conflict(path, agent, is_shared=is_shared, reservations=active)

    async def reserve(
        self,
        agent: str,
        paths: Sequence[str],
        for_s: float,
        note: str,
        *,
        is_shared: bool = False,
        locks: Mapping[str, str] = _NO_LOCKS,
    ) -> list[Reservation]:
        """Reserve real paths, all or none; raises reservation_conflict. `locks` has the relay's lock of each path."""
        clock, reservation_id = self._clock, self._minter.mint()
        length_ns, now_ns = round(for_s * SECOND_NS), clock.wall_ns()
        ends = (now_ns + length_ns, clock.boot_ns() + length_ns, clock.boot_id)
        rows = [
            Reservation(reservation_id, agent, path, int(is_shared), note, now_ns, *ends, locks.get(path))
            for path in paths
        ]
        self._rows, replaced = await self._store.writer.run(lambda tx: _grant(tx, rows, clock))
        self._gone_since_ns.pop(agent, None)
        self.on_end(replaced)
        return rows

    async def release(
        self, agent: str, paths: Sequence[str] | None, *, is_forced: bool = False, via: str | None = None
    ) -> list[Reservation]:
        """Release an agent's reservations of these real paths, or all of them; `is_forced` also those of others.

        `via` is the program through which a person does it, for the journal.
        """
        chosen = [
            row for row in self.active if (is_forced or row.agent == agent) and (paths is None or row.path in paths)
        ]
        return await self._end(chosen, "released" if not is_forced else "forced", via)

    async def sweep(self) -> None:
        """End reservations that have expired or whose agent's program is gone."""
        over = [row for row in self._rows if row.left_s(self._clock) == 0]
        await self._end(over, "expired")
        await self._end([row for row in self.active if self._is_gone(row.agent)], "program_gone")

    def _is_gone(self, agent: str) -> bool:
        """Return True if an agent is retired, or its program has been gone for too long; a person has no program."""
        found = self._agents.agents.get(agent)
        if found is not None and found.is_retired:
            return True
        if agent == DEFAULT_INBOX or (found is not None and (found.process is None or found.is_running)):
            self._gone_since_ns.pop(agent, None)
            return False
        now_ns = self._clock.boot_ns()
        return now_ns - self._gone_since_ns.setdefault(agent, now_ns) >= GONE_S * SECOND_NS

    async def _end(self, rows: Sequence[Reservation], reason: str, via: str | None = None) -> list[Reservation]:
        if not rows:
            return []
        self._rows = await self._store.writer.run(lambda tx: _delete(tx, rows, reason, via))
        self.on_end(rows)
        return list(rows)


def _read(db: apsw.Connection) -> list[Reservation]:
    return [Reservation(*row) for row in db.execute(f"{SQL.columns} ORDER BY path, agent, id")]


def _grant(
    tx: JournalTransaction, rows: Sequence[Reservation], clock: Clock
) -> tuple[list[Reservation], list[Reservation]]:
    """Insert rows, or raise the conflict; return all reservations, and those of the agent that these replace."""
    known = [row for row in _read(tx.db) if row.left_s(clock) > 0]
    for row in rows:
        held = find_conflict(row.path, row.agent, is_shared=bool(row.is_shared), reservations=known)
        if held is not None:
            raise conflict_error(row.path, held, clock)
    replaced = [old for old in known if any(old.agent == row.agent and old.path == row.path for row in rows)]
    for old in replaced:
        tx.db.execute(SQL.delete_row, (old.id, old.path))
    for row in rows:
        tx.db.execute(SQL.insert_row, row._asdict())
    body = {"agent": rows[0].agent, "paths": len(rows), "ends_at_ns": rows[0].ends_at_ns}
    tx.append("reservation.granted", ref=rows[0].id, body=body)
    return _read(tx.db), replaced


def _delete(tx: JournalTransaction, rows: Sequence[Reservation], reason: str, via: str | None) -> list[Reservation]:
    for row in rows:
        tx.db.execute(SQL.delete_row, (row.id, row.path))
    for reservation_id in dict.fromkeys(row.id for row in rows):
        ended = [row for row in rows if row.id == reservation_id]
        body: dict[str, Any] = {"agent": ended[0].agent, "paths": len(ended), "reason": reason}
        body |= {} if via is None else {"via": via}
        tx.append("reservation.ended", ref=reservation_id, body=body)
    return _read(tx.db)
