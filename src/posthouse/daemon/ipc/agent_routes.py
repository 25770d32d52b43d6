"""Routes for the agents of this host: /v1/agents (add, list, rename, retire, pause, resume).

A program that gives its pid gets a name for itself: if another running process uses the name, it gets the next numbered
one. These routes accept the name of an agent that does not exist yet in the agent header.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from posthouse.daemon.agents.processes import PID_MAX, require_process
from posthouse.daemon.agents.registry import Agent, AgentFields
from posthouse.daemon.context import LocalCall
from posthouse.daemon.request_fields import AgentName, Moment, form
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.address import AGENTS_MAX, DEFAULT_INBOX
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.errors import error
from posthouse.model.profile import Line, Word, Words

Status = Literal["idle", "working", "dnd"]


class RegisterBody(msgspec.Struct, forbid_unknown_fields=True):
    name: AgentName
    program: Word | None = None
    #: directory that the program works in; shown on this host only
    project: str | None = None
    summary: Line | None = None
    capabilities: Words | None = None
    status: Status | None = None
    #: False: senders do not learn when the agent's program was given a message
    receipts: bool | None = None
    #: process to bind the name to
    pid: Annotated[int, form("A process id.", minimum=1, maximum=PID_MAX)] | None = None


class RenameBody(msgspec.Struct, forbid_unknown_fields=True):
    name: AgentName
    to: AgentName


class RetireBody(msgspec.Struct, forbid_unknown_fields=True):
    name: AgentName
    #: shown to senders whose mail is refused
    reason: Line | None = None


class AgentsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which agents a request means; without a name, the one that it acts for."""

    names: Annotated[list[AgentName], msgspec.Meta(max_length=AGENTS_MAX)] | None = None
    #: every active agent of this program: they usually share an account
    program: str | None = None


class PauseBody(AgentsBody, kw_only=True):
    until: Moment
    #: shown to senders
    reason: Line = ""


async def register_agent(call: LocalCall) -> HttpResponse:
    """Add an agent or change its fields; with a pid, answer the name that this process uses."""
    body = await call.body(RegisterBody)
    given = AgentFields(body.program, body.project, body.summary, body.capabilities, body.status, body.receipts)
    process = None if body.pid is None else require_process(body.pid)
    agent, is_new = await call.context.agents.register(body.name, given, process)
    return json_response(_shown(call, agent), 201 if is_new else 200)


async def list_agents(call: LocalCall) -> HttpResponse:
    """Return the agents of this host, retired ones included."""
    agents = sorted(call.context.agents.agents.values(), key=lambda agent: (agent.is_retired, agent.name))
    unread: Counter[str] = Counter()
    oldest: dict[str, int] = {}
    for node in call.meshes:
        unread.update(await node.inbox.unread_counts())
        for name, at_ns in (await node.inbox.oldest_unread_ns()).items():
            oldest[name] = min(at_ns, oldest.get(name, at_ns))
    return json_response({"items": [_shown(call, each) | _mail(each.name, unread, oldest) for each in agents]})


def _mail(name: str, unread: Mapping[str, int], oldest: Mapping[str, int]) -> dict[str, Any]:
    oldest_at = format_utc(oldest[name]) if name in oldest else None
    return {"unread": unread.get(name, 0), "oldest_unread_at": oldest_at}


async def show_agent(call: LocalCall) -> HttpResponse:
    """Return one agent by its name."""
    return json_response(_shown(call, call.context.agents.require(call.params["name"])))


async def rename_agent(call: LocalCall) -> HttpResponse:
    """Give an agent another name; its mail moves with it."""
    body = await call.body(RenameBody)
    agent = await call.context.agents.rename(body.name, body.to)
    for node in call.context.meshes:
        await node.mailroom.move_renamed()
    return json_response(agent.to_api())


async def retire_agent(call: LocalCall) -> HttpResponse:
    """Stop an agent from receiving mail."""
    body = await call.body(RetireBody)
    return json_response((await call.context.agents.retire(body.name, body.reason)).to_api())


async def pause_agents(call: LocalCall) -> HttpResponse:
    """Hold the mail of agents until a time: nothing wakes them, and senders see the state."""
    body = await call.body(PauseBody)
    names = _named(call, body)
    set_by = "person" if call.agent == DEFAULT_INBOX else call.agent
    await call.context.pauses.pause(names, parse_utc(body.until), body.reason, set_by)
    return json_response({"items": [_shown(call, call.context.agents.require(name)) for name in names]})


async def resume_agents(call: LocalCall) -> HttpResponse:
    """End the pauses of agents; return those that were paused."""
    names = await call.context.pauses.resume(_named(call, await call.body(AgentsBody)))
    return json_response({"items": [_shown(call, call.context.agents.require(name)) for name in names]})


def _named(call: LocalCall, body: AgentsBody) -> list[str]:
    agents = call.context.agents
    if body.names is not None and body.program is not None:
        raise error("body_invalid", reason="give either names or program")
    if body.program is not None:
        found = [each.name for each in agents.agents.values() if each.program == body.program and not each.is_retired]
        if not found:
            raise error("body_invalid", reason=f"no agent of this host runs in {body.program}")
        return found
    names = body.names or [call.agent]
    if names == [DEFAULT_INBOX]:
        raise error("body_invalid", reason="name the agents, or act as one with the agent header")
    return [agents.require_active(name).name for name in dict.fromkeys(names)]


def _shown(call: LocalCall, agent: Agent) -> dict[str, Any]:
    pause = call.context.pauses.find(agent.name)
    return agent.to_api() | {"paused": None if pause is None else pause.to_api()}
