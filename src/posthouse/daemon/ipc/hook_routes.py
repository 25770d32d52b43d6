"""Routes that wake agents and run commands: POST /v1/hooks/{program}/{event} for hooks of coding agents,
/v1/agents/on-mail, /v1/event-hooks for hooks of the user, and the MCP connection of a program, with which its waiter
ends.

The body of a hook is the JSON that the program gives it; the answer is what the hook prints, with its exit code in
the header Posthouse-Exit. `posthouse hook` is the only client, and it is silent about refusals.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Literal

import msgspec

from posthouse.daemon.agents.reservations import real_path
from posthouse.daemon.context import LocalCall
from posthouse.daemon.request_fields import AgentName, form
from posthouse.daemon.wake import programs
from posthouse.daemon.wake.mail_commands import COMMAND_MAX_CHARS
from posthouse.daemon.wake.sessions import InboxSocket, Session, find_program
from posthouse.daemon.wake.waker import Announced
from posthouse.http.response import HttpResponse, json_response, to_aiohttp
from posthouse.mcp.line_stream import PipeQuery, serve_pipe
from posthouse.model.errors import error
from posthouse.model.limits import KIB

INPUT_MAX_BYTES = 128 * KIB
EXIT_HEADER = "Posthouse-Exit"
NAME_HEADER = "Posthouse-Agent"
INBOX_HEADER, INBOX_TOKEN_HEADER = "Posthouse-Inbox", "Posthouse-Inbox-Token"


class HookQuery(msgspec.Struct):
    #: process that started the hook
    pid: int
    #: name that the hook asks for; empty: the program's
    as_: str = msgspec.field(default="", name="as")


async def run_hook(call: LocalCall) -> HttpResponse:
    """Answer a hook."""
    program, event = call.params["program"], call.params["event"]
    if program not in programs.PROGRAMS:
        raise error("parameter_invalid", name="program", reason=f"one of {', '.join(programs.PROGRAMS)}")
    if event not in programs.EVENTS:
        raise error("parameter_invalid", name="event", reason=f"one of {', '.join(sorted(programs.EVENTS))}")
    arguments, given = call.arguments(HookQuery), await _input(call)
    waker = call.context.waker
    if event == programs.STATUS:
        return json_response({"sessions": [session.to_api() for session in waker.sessions.of_program(program)]})
    process = find_program(arguments.pid)
    if event == programs.GUARD:
        session = None if process is None else await waker.session_of(program, arguments.as_, process, given)
        return _response(await _guard(call, given, arguments.as_ if session is None else session.agent))
    if given.agent_id is not None or process is None:
        return _response(programs.HookAnswer())
    session = await waker.session_of(program, arguments.as_, process, given)
    _note_inbox(call, session, given)
    if event != programs.WAIT:
        return await _announce(call, session, await waker.on_event(session, event, given))
    with call.waiting(call.context.waiters):
        announced = await waker.wait(session, given, call.context)
    if call.context.is_stopping and not announced.claim.waiting:
        raise error("daemon_stopping")  # the waiter waits for the next daemon
    return await _announce(call, session, announced)


def _note_inbox(call: LocalCall, session: Session, given: programs.HookInput) -> None:
    """Keep the session's inbox socket; its token stays in memory."""
    path, token = (call.request.headers.get(name, "") for name in (INBOX_HEADER, INBOX_TOKEN_HEADER))
    if path.startswith("/"):
        session.inbox = InboxSocket(path, token)
    if isinstance(given.permission_mode, str):
        session.permission_mode = given.permission_mode


async def _announce(call: LocalCall, session: Session, announced: Announced) -> HttpResponse:
    """Send the answer to a hook; its messages count as announced only if the hook is still there to read it."""
    response = _response(announced.answer)
    if not announced.claim.waiting:
        return response
    sent, is_heard = to_aiohttp(response), False
    try:
        await sent.prepare(call.request)
        await sent.write_eof()
        is_heard = True
    finally:
        await call.context.waker.on_answered(session, announced.claim, is_heard=is_heard)
    return HttpResponse(response=sent)


async def _guard(call: LocalCall, given: programs.HookInput, agent: str) -> programs.HookAnswer:
    """Deny a write to a file that another agent has reserved; subagents act for their agent."""
    if given.file is None:
        return programs.HookAnswer()
    context = call.context
    held = context.reservations.conflict(await asyncio.to_thread(real_path, given.file), agent)
    if held is None:
        return programs.HookAnswer()
    note = f" ({programs.clean_name(held.note)})" if held.note else ""
    reason = (
        f"{held.holder} has reserved {held.path} for {held.left_s(context.clock)} s more{note}. Work on other files, "
        f"or ask for it: send {held.holder} a message with the posthouse tool `send` or `posthouse send`."
    )
    return programs.deny_answer(given, reason)


async def serve_program(call: LocalCall) -> HttpResponse:
    """Serve MCP to a program; the waiter of its hooks ends with the connection."""
    process = find_program(call.arguments(PipeQuery).pid)
    with call.context.waker.connected(process):
        return await serve_pipe(call)


async def _input(call: LocalCall) -> programs.HookInput:
    data = await call.read(INPUT_MAX_BYTES)
    try:
        return msgspec.json.decode(data or b"{}", type=programs.HookInput)
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise error("body_invalid", reason=str(fault)) from fault


def _response(answer: programs.HookAnswer) -> HttpResponse:
    headers = {EXIT_HEADER: str(answer.exit)}
    if answer.agent is not None:
        headers[NAME_HEADER] = answer.agent
    return HttpResponse(200, answer.body, "text/plain; charset=utf-8", headers)


class OnMailBody(msgspec.Struct, forbid_unknown_fields=True):
    name: AgentName
    #: for a shell; null removes it
    command: Annotated[str, form("A command.", minLength=1, maxLength=COMMAND_MAX_CHARS)] | None = None


async def set_on_mail(call: LocalCall) -> HttpResponse:
    """Set or remove the command that the daemon runs when mail for an agent arrives."""
    body = await call.body(OnMailBody)
    commands = call.context.waker.commands
    await commands.set_command(body.name, body.command)
    return json_response({"name": body.name, "on_mail": commands.on_mail.get(body.name)})


class ParkedBody(msgspec.Struct, forbid_unknown_fields=True):
    """The action on the parked events of a hook of the user."""

    hook: str
    action: Literal["retry", "drop"]


async def list_event_hooks(call: LocalCall) -> HttpResponse:
    """Return the hooks of the user, and the events whose commands keep failing."""
    hooks = call.context.user_hooks
    parked = await hooks.parked.list()
    counts = Counter(event.hook for event in parked)  # not the kept counts, which may be of an earlier or later commit
    items = [{"name": hook.name, "event": hook.event, "parked": counts[hook.name]} for hook in hooks.hooks]
    return json_response({"items": items, "parked": [event.to_api() for event in parked]})


async def change_parked(call: LocalCall) -> HttpResponse:
    """Try the parked events of a hook again now, or give them up."""
    body, hooks = await call.body(ParkedBody), call.context.user_hooks
    if body.hook not in {hook.name for hook in hooks.hooks}:
        known = ", ".join(hook.name for hook in hooks.hooks) or "none"
        raise error("parameter_invalid", name="hook", reason=f"the daemon has no hook {body.hook!r}, only: {known}")
    count = hooks.parked.count(body.hook)
    if body.action == "drop":
        count = await hooks.parked.drop(body.hook)
    else:
        await hooks.parked.retry(body.hook)
    return json_response({"hook": body.hook, "count": count})
