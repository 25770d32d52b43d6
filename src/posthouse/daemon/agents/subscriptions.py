"""The topics that each agent of this host follows in one mesh.

The relay knows one subscription per host and pattern; this table knows which agents it is for. Reads come from memory,
which changes only after a commit. Retired agents follow nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from posthouse.daemon.agents.registry import SQL, AgentRegistry
from posthouse.journal.append import JournalTransaction
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.subjects import matches


class Subscriptions:
    """The topics that each agent follows in one mesh."""

    def __init__(self, agents: AgentRegistry, mesh: str) -> None:
        self._agents = agents
        self._mesh = mesh
        self._rows = agents.store.pool.run_blocking(lambda db: _read(db, mesh))
        agents.on_change.append(self._reload)

    def close(self) -> None:
        """Stop following changes of agents."""
        self._agents.on_change.remove(self._reload)

    def of(self, agent: str) -> list[str]:
        """Return the patterns of an agent."""
        return sorted(pattern for name, pattern in self._rows if name == agent)

    def union(self) -> set[str]:
        """Return the patterns that active agents or the default inbox follow."""
        return {pattern for name, pattern in self._rows if self._follows(name)}

    def abandoned(self) -> set[str]:
        """Return the patterns that only retired agents have."""
        return {pattern for _name, pattern in self._rows} - self.union()

    def followers(self, topic: str) -> list[str]:
        """Return the agents that follow a topic."""
        found = {name for name, pattern in self._rows if self._follows(name) and matches(topic, pattern)}
        return sorted(found)

    async def add(self, agent: str, patterns: Iterable[str]) -> None:
        """Add patterns that an agent follows."""
        rows = [(self._mesh, agent, pattern) for pattern in patterns]
        await self._agents.store.writer.run(lambda tx: _write(tx, SQL.follow, rows))
        self._rows |= {(agent, pattern) for _mesh, agent, pattern in rows}

    async def remove(self, agent: str, pattern: str) -> None:
        """Remove a pattern that an agent follows."""
        rows = [(self._mesh, agent, pattern)]
        await self._agents.store.writer.run(lambda tx: _write(tx, SQL.unfollow, rows))
        self._rows -= {(agent, pattern)}

    async def forget_retired(self) -> None:
        """Remove the patterns of retired agents; an agent that is added again chooses new ones."""
        for agent, pattern in [row for row in self._rows if not self._follows(row[0])]:
            await self.remove(agent, pattern)

    def _follows(self, agent: str) -> bool:
        if agent == DEFAULT_INBOX:
            return True
        known = self._agents.agents.get(agent)
        return known is not None and not known.is_retired

    def _reload(self) -> None:
        """Read the table again: renaming an agent changes it."""
        self._rows = self._agents.store.pool.run_blocking(lambda db: _read(db, self._mesh))


def _read(db: apsw.Connection, mesh: str) -> set[tuple[str, str]]:
    return {(str(agent), str(pattern)) for agent, pattern in db.execute(SQL.subscriptions, (mesh,))}


def _write(tx: JournalTransaction, statement: str, rows: list[tuple[str, str, str]]) -> None:
    tx.db.executemany(statement, rows).fetchall()
