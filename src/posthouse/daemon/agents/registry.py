"""The agents of this home: their names and capabilities, and the process that uses each name.

The registry opens agents.db, the store of everything that belongs to the home and not to one mesh; other parts keep
their tables in it and write through `store`. Reads come from memory, which changes only after a commit. A name is
used by at most one running process; a second one gets the next numbered name, so two programs never share an inbox.
The names in `to_api` are a contract of the local API. If you change one: 1. DaemonClient, 2. docs/reference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.daemon.agents.pauses import Pause
from posthouse.daemon.agents.processes import ProcessRef
from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store, exit_process
from posthouse.model.address import AGENTS_MAX, DEFAULT_INBOX, numbered_names, validate_agent_name
from posthouse.model.clock import Clock, format_utc
from posthouse.model.errors import Fatal, error
from posthouse.storage.sql_files import Component, Statements

_PACKAGE = "posthouse.daemon.agents"
AGENTS = Component("agents", _PACKAGE)
SQL = Statements(_PACKAGE, "agents.sql")
RETIRED_BY_USER = "it was retired"


class Agent(NamedTuple):
    """One agent, active or retired."""

    name: str
    program: str | None
    #: directory that the program works in; never leaves this host
    project: str | None
    summary: str | None
    #: JSON array of strings
    capabilities: str
    status: str
    receipts: int
    created_at_ns: int
    retired_at_ns: int | None
    retired_reason: str | None
    renamed_to: str | None
    pid: int | None
    process_start: str | None

    @property
    def is_retired(self) -> bool:
        """True if the agent no longer accepts mail."""
        return self.retired_at_ns is not None

    @property
    def process(self) -> ProcessRef | None:
        """The process that used the name last."""
        return None if self.pid is None else ProcessRef(self.pid, self.process_start or "")

    @property
    def is_running(self) -> bool:
        """True while the process that uses the name exists."""
        return self.process is not None and self.process.is_running()

    def to_api(self) -> dict[str, Any]:
        """Return the agent as the local API shows it."""
        return {
            "name": self.name,
            "program": self.program,
            "project": self.project,
            "summary": self.summary,
            "capabilities": msgspec.json.decode(self.capabilities),
            "status": self.status,
            "receipts": bool(self.receipts),
            "created_at": format_utc(self.created_at_ns),
            "retired_at": None if self.retired_at_ns is None else format_utc(self.retired_at_ns),
            "retired_reason": self.retired_reason,
            "renamed_to": self.renamed_to,
            "pid": self.pid,
            "is_running": self.is_running,
        }


class AgentFields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of an agent that a request may set; absent fields stay as they are."""

    program: str | None = None
    project: str | None = None
    summary: str | None = None
    capabilities: list[str] | None = None
    status: str | None = None
    receipts: bool | None = None

    def columns(self) -> dict[str, Any]:
        """Return the given fields as columns."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.capabilities is not None:
            given["capabilities"] = msgspec.json.encode(self.capabilities).decode()
        if self.receipts is not None:
            given["receipts"] = int(self.receipts)
        return given


class Registered(NamedTuple):
    """The answer to a registration."""

    agent: Agent
    is_new: bool


class AgentRegistry:
    """The open store of one home's agents."""

    def __init__(self, path: Path, clock: Clock, on_fatal: Callable[[Fatal], None] = exit_process) -> None:
        self.store = Store(path, (AGENTS,), clock, on_fatal=on_fatal, readers=1)
        self._agents = self.store.pool.run_blocking(read_agents)
        #: callbacks() after agents changed
        self.on_change: list[Callable[[], None]] = []
        #: returns the pause of an agent that is paused now
        self.pause_of: Callable[[str], Pause | None] = lambda _agent: None
        #: callbacks(agent, its former process) after another process took over a name
        self.on_successor: list[Callable[[str, ProcessRef], Awaitable[None]]] = []

    def close(self) -> None:
        """Commit the waiting writes and close."""
        self.store.close()

    # reading

    @property
    def agents(self) -> Mapping[str, Agent]:
        """Every agent by name, retired ones included."""
        return self._agents

    def require(self, name: str) -> Agent:
        """Return an agent, active or retired; raises agent_unknown."""
        found = self._agents.get(validate_agent_name(name))
        if found is None:
            raise error("agent_unknown", name=name)
        return found

    def check_known(self, name: str) -> str:
        """Return the current name of an agent, "" for the default inbox, or raise agent_unknown.

        A program that still uses a name from before a rename acts for the renamed agent.
        """
        return name if name == DEFAULT_INBOX else self.present_name(self.require(name).name)

    def require_active(self, name: str) -> Agent:
        """Return an agent that accepts mail; raises agent_unknown or agent_retired."""
        return _active(self.require(name))

    def absence_of(self, name: str) -> str | None:
        """Return why an agent cannot answer now; None if it may, also if its process is not known."""
        agent = self._agents.get(name)
        if agent is None or agent.process is None or agent.is_running:
            return None
        return f"the program of {name} does not run"

    def present_name(self, name: str) -> str:
        """Return the name that an agent has after all renames."""
        passed = {name}
        while (later := self._agents[name].renamed_to) is not None and later not in passed:
            passed.add(name := later)
        return name

    # changing

    async def register(self, name: str, given: AgentFields, process: ProcessRef | None = None) -> Registered:
        """Add an agent, or change the fields of one; with a process, bind the first free name to it.

        Without a process a retired agent becomes active again.
        """
        validate_agent_name(name)
        before = {agent.name: agent.process for agent in self._agents.values()}
        found = await self.store.writer.run(lambda tx: _register(tx, name, given, process))
        self._adopt(found.agent)
        left = before.get(found.agent.name)
        if process is not None and left is not None and left != process:
            for callback in self.on_successor:
                await callback(found.agent.name, left)
        return found

    async def change(self, name: str, given: AgentFields) -> Agent:
        """Change the fields of an agent."""
        self.require(name)
        changed = await self.store.writer.run(lambda tx: _change(tx, name, given))
        self._adopt(changed)
        return changed

    async def rename(self, name: str, to: str) -> Agent:
        """Give an agent another name; the old one stays as a retired name that points to it."""
        self.require(name)
        validate_agent_name(to)
        left, renamed = await self.store.writer.run(lambda tx: _rename(tx, name, to))
        self._adopt(left, renamed)
        return renamed

    async def retire(self, name: str, reason: str | None = None) -> Agent:
        """Stop an agent from receiving mail; its inbox stays readable."""
        self.require(name)
        retired = await self.store.writer.run(lambda tx: _retire(tx, name, reason or RETIRED_BY_USER))
        self._adopt(retired)
        return retired

    def _adopt(self, *changed: Agent) -> None:
        self._agents = self._agents | {agent.name: agent for agent in changed}
        self.notify()

    def notify(self) -> None:
        """Call the callbacks for a change of agents."""
        for callback in self.on_change:
            callback()


def read_agents(db: apsw.Connection) -> dict[str, Agent]:
    """Return every agent by name, in the order of their names."""
    return {row[0]: Agent(*row) for row in db.execute(f"{SQL.columns} ORDER BY name")}


def free_name(wanted: str, program: str | None, process: ProcessRef, agents: Mapping[str, Agent]) -> str:
    """Return the name that a process uses: the one it has, else the first of the series that no process uses."""
    series = list(numbered_names(wanted))
    for name in series:
        if name in agents and agents[name].process == process and not agents[name].is_retired:
            return name
    for name in series:
        agent = agents.get(name)
        if agent is None:
            return name
        if name == wanted:
            _active(agent)
        is_foreign = name != wanted and agent.program != program
        if not (agent.is_retired or agent.is_running or is_foreign):
            return name
    raise error("agents_full", limit=AGENTS_MAX)


def _register(tx: JournalTransaction, name: str, given: AgentFields, process: ProcessRef | None) -> Registered:
    agents = read_agents(tx.db)
    fields = given.columns()
    if process is not None:
        name = free_name(name, given.program, process, agents)
        fields |= {"pid": process.pid, "process_start": process.start}
    before = agents.get(name)
    if before is None or before.is_retired:
        if sum(not agent.is_retired for agent in agents.values()) >= AGENTS_MAX:
            raise error("agents_full", limit=AGENTS_MAX)
        fresh = before or Agent(name, None, None, None, "[]", "idle", 1, tx.now_ns, None, None, None, None, None)
        agent = fresh._replace(retired_at_ns=None, retired_reason=None, renamed_to=None, **fields)
        _put(tx, agent, "agent.added", {"program": agent.program} if agent.program else {})
        return Registered(agent, before is None)
    agent = before._replace(**fields)
    if agent != before:
        _put(tx, agent)
    return Registered(agent, False)


def _change(tx: JournalTransaction, name: str, given: AgentFields) -> Agent:
    agent = read_agents(tx.db)[name]._replace(**given.columns())
    _put(tx, agent)
    return agent


def _rename(tx: JournalTransaction, name: str, to: str) -> tuple[Agent, Agent]:
    agents = read_agents(tx.db)
    before = _active(agents[name])
    if to in agents and agents[to].renamed_to is None:
        raise error("agent_exists", name=to)
    renamed = before._replace(name=to)
    left = before._replace(
        retired_at_ns=tx.now_ns, retired_reason=f"it is called {to} now", renamed_to=to, pid=None, process_start=None
    )
    _put(tx, renamed)
    _put(tx, left, "agent.renamed", {"to": to})
    for (table,) in tx.db.execute(SQL.tables_with_agents).fetchall():
        tx.db.execute(f'UPDATE OR REPLACE "{table}" SET agent = ? WHERE agent = ?', (to, name))
    return left, renamed


def _retire(tx: JournalTransaction, name: str, reason: str) -> Agent:
    agent = _active(read_agents(tx.db)[name])
    retired = agent._replace(retired_at_ns=tx.now_ns, retired_reason=reason, pid=None, process_start=None)
    _put(tx, retired, "agent.retired", {"reason": reason})
    return retired


def _active(agent: Agent) -> Agent:
    if agent.is_retired:
        raise error("agent_retired", name=agent.name, reason=agent.retired_reason)
    return agent


def _put(tx: JournalTransaction, agent: Agent, record: str | None = None, body: dict[str, Any] | None = None) -> None:
    """Write an agent; only a change of the agents that receive mail gets a record."""
    tx.db.execute(SQL.put_agent, agent._asdict())
    if record is not None:
        tx.append(record, ref=agent.name, body=body or {})
