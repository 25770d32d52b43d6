"""Paused agents: until a given time their mail wakes nothing; then it is released one message at a time.

    paused       now is before `until`: mail is stored, nothing wakes the agent, senders see the state
    releasing    from `until` on: one message at a time, with a random gap, until no mail from the pause is left

The random gaps keep agents that share an account, and so pause together, from starting together again. An agent that
asks for its inbox still gets all of it: a pause holds back wake-ups, not mail. Reads come from memory, which changes
only after a commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.clock import Clock, format_utc
from posthouse.model.errors import error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.agents", "pauses.sql")
PAUSE_MAX_S = 31 * DAY_S
HOOK = "hook"  # sets and ends the pauses of usage limits
FIRST_GAP_S = (0.0, 30.0)  # from the end of the pause to the first message
GAP_S = (2.0, 10.0)  # between messages that waited
RELEASE_MAX_S = 3_600  # after it, the rest of the mail that waited is released immediately


class Pause(NamedTuple):
    """The pause of one agent."""

    agent: str
    until_ns: int
    reason: str
    #: the agent itself, person or hook
    set_by: str
    set_at_ns: int
    #: the next message that waited may wake the agent from this time on
    release_at_ns: int

    def to_api(self) -> dict[str, Any]:
        """Return the pause as the local API shows it."""
        set_at = format_utc(self.set_at_ns)
        return {"until": format_utc(self.until_ns), "reason": self.reason, "set_by": self.set_by, "set_at": set_at}


class Pauses:
    """The pauses of all agents of a home."""

    def __init__(self, store: Store, clock: Clock, chance: random.Random | None = None) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance or random.Random()
        self._pauses = store.pool.run_blocking(_read)
        #: callbacks(agents) after pauses began or ended
        self.on_change: list[Callable[[Sequence[str]], None]] = []

    def reload(self) -> None:
        """Read the pauses again, after an agent was renamed."""
        if self._pauses:
            self._pauses = self._store.pool.run_blocking(_read)

    # reading

    def find(self, agent: str) -> Pause | None:
        """Return the pause of an agent that is paused now, else None."""
        pause = self._pauses.get(agent)
        return pause if pause is not None and self._clock.wall_ns() < pause.until_ns else None

    def latest(self, agent: str) -> Pause | None:
        """Return the latest pause of an agent, which may have ended."""
        return self._pauses.get(agent)

    def is_latest(self, agent: str, pause: Pause | None) -> bool:
        """Return True if no pause of an agent has begun or ended since `latest` returned this one."""
        return self._pauses.get(agent) == pause

    def is_releasing(self, agent: str) -> bool:
        """Return True while mail from a pause that has ended is released one message at a time."""
        pause = self._pauses.get(agent)
        return pause is not None and 0 <= self._clock.wall_ns() - pause.until_ns < RELEASE_MAX_S * SECOND_NS

    def held_s(self, agent: str) -> float:
        """Return how long an agent must not be woken; zero if it may be woken now."""
        pause = self._pauses.get(agent)
        return 0.0 if pause is None else max(0.0, (pause.release_at_ns - self._clock.wall_ns()) / SECOND_NS)

    # changing

    async def pause(self, agents: Sequence[str], until_ns: int, reason: str, set_by: str) -> list[Pause]:
        """Pause agents until a time; a later call replaces an earlier one."""
        now_ns = self._clock.wall_ns()
        if not now_ns < until_ns <= now_ns + PAUSE_MAX_S * SECOND_NS:
            raise error("pause_invalid", until=format_utc(until_ns), days=PAUSE_MAX_S // DAY_S)
        made = [Pause(name, until_ns, reason, set_by, now_ns, until_ns + self._gap_ns(FIRST_GAP_S)) for name in agents]
        await self._put(made, "agent.paused")
        return made

    async def resume(self, agents: Sequence[str]) -> list[str]:
        """End pauses now; return the agents that were paused."""
        now_ns = self._clock.wall_ns()
        ended = [pause._replace(until_ns=now_ns, release_at_ns=now_ns) for name in agents if (pause := self.find(name))]
        await self._put(ended, "agent.resumed")
        return [pause.agent for pause in ended]

    async def note_release(self, agent: str) -> None:
        """Note that a message that waited was given to the agent: the next one waits for a random gap."""
        pause = self._pauses.get(agent)
        if pause is not None:
            await self._put([pause._replace(release_at_ns=self._clock.wall_ns() + self._gap_ns(GAP_S))])

    async def finish(self, agent: str, ended: Pause | None) -> None:
        """Note that no mail from an ended pause is left; a pause that has begun or ended since then stays."""
        if ended is None or not self.is_latest(agent, ended) or not self.is_releasing(agent):
            return
        await self._store.writer.run(lambda tx: tx.db.execute(SQL.delete_pause, (agent, ended.until_ns)).fetchall())
        if self.is_latest(agent, ended):
            del self._pauses[agent]

    async def _put(self, pauses: Sequence[Pause], record: str | None = None) -> None:
        if not pauses:
            return
        await self._store.writer.run(lambda tx: _write(tx, pauses, record))
        self._pauses |= {pause.agent: pause for pause in pauses}
        if record is not None:
            for callback in self.on_change:
                callback([pause.agent for pause in pauses])

    def _gap_ns(self, bounds_s: tuple[float, float]) -> int:
        return round(self._chance.uniform(*bounds_s) * SECOND_NS)


def _read(db: apsw.Connection) -> dict[str, Pause]:
    return {pause.agent: pause for pause in (Pause(*row) for row in db.execute(SQL.columns))}


def _write(tx: JournalTransaction, pauses: Sequence[Pause], record: str | None) -> None:
    for pause in pauses:
        tx.db.execute(SQL.put_pause, pause._asdict())
        if record is not None:
            tx.append(record, ref=pause.agent, body={"until_ns": pause.until_ns, "set_by": pause.set_by})
