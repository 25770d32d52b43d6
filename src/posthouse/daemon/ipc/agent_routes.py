"""Routes for the agents of this host: /v1/agents (add, list, rename, retire).

A program that gives its pid gets a name of its own: if another running process uses the name, it gets the next
numbered one. These routes accept the name of an agent that does not exist yet in the agent header.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from posthouse.daemon.agents.processes import require_process
from posthouse.daemon.agents.registry import AgentFields
from posthouse.daemon.context import LocalCall
from posthouse.http.response import HttpResponse, json_response

Status = Literal["idle", "working", "dnd"]
# The profile of a host lists 64 agents and is an event: these bounds keep it far below the size of one.
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Line = Annotated[str, msgspec.Meta(max_length=200)]
Words = Annotated[list[Word], msgspec.Meta(max_length=16)]


class _RegisterBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    program: Word | None = None
    #: directory that the program works in; shown on this host only
    project: str | None = None
    summary: Line | None = None
    capabilities: Words | None = None
    status: Status | None = None
    #: False: senders do not learn when the agent's program was given a message
    receipts: bool | None = None
    #: process to bind the name to
    pid: int | None = None


class _RenameBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    to: str


class _RetireBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    #: shown to senders whose mail is refused
    reason: Line | None = None


class _OnMailBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    #: for a shell; None removes it
    command: str | None = None


async def register_agent(call: LocalCall) -> HttpResponse:
    """Add an agent or change its fields; with a pid, answer the name that this process uses."""
    body = await call.body(_RegisterBody)
    given = AgentFields(body.program, body.project, body.summary, body.capabilities, body.status, body.receipts)
    process = None if body.pid is None else require_process(body.pid)
    agent, is_new = await call.context.agents.register(body.name, given, process)
    return json_response(agent.to_api(), 201 if is_new else 200)


async def list_agents(call: LocalCall) -> HttpResponse:
    """Return the agents of this host, retired ones included."""
    agents = sorted(call.context.agents.agents.values(), key=lambda agent: (agent.is_retired, agent.name))
    return json_response({"items": [agent.to_api() for agent in agents]})


async def show_agent(call: LocalCall) -> HttpResponse:
    """Return one agent by its name."""
    return json_response(call.context.agents.require(call.id).to_api())


async def rename_agent(call: LocalCall) -> HttpResponse:
    """Give an agent another name; its mail moves with it."""
    body = await call.body(_RenameBody)
    return json_response((await call.context.agents.rename(body.name, body.to)).to_api())


async def retire_agent(call: LocalCall) -> HttpResponse:
    """Let an agent take no more mail."""
    body = await call.body(_RetireBody)
    return json_response((await call.context.agents.retire(body.name, body.reason)).to_api())


async def set_on_mail(call: LocalCall) -> HttpResponse:
    """Set or remove the command that the daemon runs when mail for an agent arrives."""
    body = await call.body(_OnMailBody)
    commands = call.context.waker.commands
    await commands.set_command(body.name, body.command)
    return json_response({"name": body.name, "on_mail": commands.on_mail.get(body.name)})
