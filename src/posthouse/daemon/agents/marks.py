"""How far each reader of an agent's mail has read: the mark of `wait`, and the cursors of programs.

A reader asks for mail after its mark and moves the mark once it has the mail, so a reader that ends in between gets
the mail again. A mark moves back only for a successor of the agent's process. Hooks announce mail through separate
claims and move no mark. A reader with conditions, such as one sender, has a mark for exactly these conditions: waiting
for one sender does not skip mail of another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.errors import error
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.agents", "marks.sql")
#: marks with conditions that an agent may have; beyond it, the ones not moved for longest are forgotten
CONDITIONAL_MAX = 100
READER = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MARK = re.compile(READER.pattern + r"(\?[0-9a-f]{16})?")


def mark_name(reader: str, conditions: Mapping[str, str | None]) -> str:
    """Return the name of a reader's mark under conditions; raises parameter_invalid for a malformed reader."""
    if not READER.fullmatch(reader):
        raise error("parameter_invalid", name="reader", reason="a reader is named by 1 to 64 of a-z 0-9 . _ -")
    given = sorted((name, value) for name, value in conditions.items() if value is not None)
    return f"{reader}?{hashlib.sha256(repr(given).encode()).hexdigest()[:16]}" if given else reader


class InboxPosition(NamedTuple):
    """A position in one inbox."""

    mesh: str
    #: of the inbox's store
    epoch: str
    position: int


class Marks:
    """The marks of all agents of a home."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def position(self, agent: str, mark: str, mesh: str, epoch: str) -> int:
        """Return the position after which a reader wants mail; zero before its first."""
        found = await self._store.pool.run(lambda db: db.execute(SQL.position, (agent, mark, mesh, epoch)).get)
        return found if isinstance(found, int) else 0

    async def move(self, agent: str, mark: str, to: InboxPosition) -> None:
        """Move a mark forward; a mark that is already there or further stays."""
        if not MARK.fullmatch(mark):
            raise error("value_invalid", name="mark", reason="use the mark that the inbox answered")
        await self._store.writer.run(lambda tx: _move(tx, agent, mark, to))

    async def rewind_wait(self, agent: str, to: InboxPosition) -> None:
        """Move the marks of `wait` back for a successor: mail given to its predecessor is new to it."""
        values = {"agent": agent, **to._asdict()}
        await self._store.writer.run(lambda tx: tx.db.execute(SQL.rewind_wait, values).fetchall())


def _move(tx: JournalTransaction, agent: str, mark: str, to: InboxPosition) -> None:
    tx.db.execute(SQL.move, {"agent": agent, "reader": mark, "now_ns": tx.now_ns, **to._asdict()})
    if "?" in mark:
        tx.db.execute(SQL.forget_oldest, {"agent": agent, "keep": CONDITIONAL_MAX})
