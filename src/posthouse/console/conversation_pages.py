"""Conversations: the list of threads, one thread with the state of each message, and the path of one message.

Threads come from the daemon of this host, so they hold the messages that its agents sent and received. A person writes
as the host itself, through the daemon's outbox, so these messages are as durable as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from posthouse.client.daemon import InboxItem
from posthouse.client.daemon.trace_steps import Step, in_order, inbox_steps, outbox_steps, relay_steps
from posthouse.console.context import VIA, ConsoleCall
from posthouse.console.upstream import Found, attempt
from posthouse.http.response import HttpResponse
from posthouse.model.clock import parse_utc

PAGE = 25
TEXT_MAX = 4_000  # characters of a message that a thread shows; its own page shows all
BAR_WIDTH = 100.0  # of the chart beside the steps of a message, in SVG user units
_BAR_LEAST = 1.0  # a step that took no time is still visible


async def list_conversations(call: ConsoleCall) -> HttpResponse:
    """Show the threads, the one with the newest message first."""
    daemon = call.upstream.daemon
    before = call.parameter("before")
    threads = await attempt(daemon.threads(before=before or None, limit=PAGE))
    page = threads.value
    return call.page(
        "conversations.html",
        threads=page or [],
        states=await call.upstream.message_states(thread.last for thread in page or []),
        next=None if page is None else page.next,
        is_first=not before,
        names=await call.upstream.names(),
        recipients=await _recipients(call),
        failures=[threads.failure] if threads.failure else [],
    )


async def show_conversation(call: ConsoleCall) -> HttpResponse:
    """Show every message of a thread."""
    thread = await call.upstream.daemon.thread(call.params["id"])
    last = max(thread.messages, key=lambda each: each.at)
    return call.page(
        "conversation.html",
        thread=thread,
        states=await call.upstream.message_states(thread.messages),
        names=await call.upstream.names(),
        last=last,
        answer_to=_answer_address(last, await call.upstream.names()),
        text_max=TEXT_MAX,
    )


def _answer_address(message: Any, names: Mapping[str, str]) -> str:
    """Return the recipient of an answer to a message: its topic, its author, or, for an own message, its recipient."""
    if message.to.startswith("#"):
        return str(message.to)
    node, agent = (message.to, message.to_agent) if message.is_own else (message.sender, message.from_agent)
    host = names.get(node, node)
    return f"{agent}@{host}" if agent else host


async def _recipients(call: ConsoleCall) -> list[str]:
    """Return the addresses that a message may go to: agents, hosts and topics."""
    peers = (await attempt(call.upstream.daemon.peers())).or_else({"peers": []})["peers"]
    topics = (await attempt(call.upstream.daemon.topics())).or_else({"topics": []})["topics"]
    found: list[str] = []
    for host in peers:
        if host["name"]:
            found += [*(f"{agent['name']}@{host['name']}" for agent in host["agents"]), host["name"]]
    return [*found, *(f"#{topic}" for topic in topics)]


async def show_trace(call: ConsoleCall) -> HttpResponse:
    """Show the path of one message over bus, outbox, relay and inbox."""
    key, daemon = call.params["id"], call.upstream.daemon
    item = await attempt(daemon.item(key))
    message_id = key if item.value is None else item.value.message_id
    found = await attempt(daemon.message(message_id))
    if item.value is None and found.value is None:
        raise found.failure or item.failure  # type: ignore[misc]
    answer = found.or_else({"outbox": None, "relay": None, "relay_error": None})
    row, relay = answer["outbox"], answer["relay"]
    if item.value is None and row is not None:
        item = await attempt(daemon.item(row["message_id"]))
    event_id = row["message_id"] if row is not None else relay["id"] if relay is not None else message_id
    steps = _known_steps(row, relay, item, await call.upstream.names())
    if answer.get("answered_at"):
        steps.append(Step("inbox", "answered", parse_utc(answer["answered_at"])))
    steps += await _bus_steps(call, event_id, None if row is None else row["client_message_id"])
    thread = await attempt(daemon.thread(event_id))
    shown = _with_bars(in_order(steps))
    return call.page(
        "trace.html",
        message_id=event_id,
        message=next((each for each in thread.value.messages if each.message_id == event_id), None)
        if thread.value is not None
        else None,
        thread=thread.value,
        names=await call.upstream.names(),
        steps=shown,
        span_ms=_span_ms(shown),
        bar_width=BAR_WIDTH,
        state=answer.get("state"),
        relay_error=answer.get("relay_error"),
    )


def _span_ms(steps: Iterable[Mapping[str, Any]]) -> float:
    return max((step["after_ms"] or 0 for step in steps), default=0)


def _with_bars(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps, each with a bar from the time of the previous step to its own."""
    scale, end, shown = BAR_WIDTH / (_span_ms(steps) or 1), 0.0, []
    for step in steps:
        start, end = end, end if step["after_ms"] is None else step["after_ms"] * scale
        width = max(_BAR_LEAST, end - start)
        shown.append(step | {"bar_x": min(start, BAR_WIDTH - width), "bar_width": width})
    return shown


def _known_steps(
    row: Mapping[str, Any] | None, relay: Mapping[str, Any] | None, item: Found[InboxItem], names: Mapping[str, str]
) -> list[Step]:
    steps: list[Step] = []
    if row is not None:
        steps += outbox_steps(row)
    if relay is not None:
        steps += relay_steps(relay, names)
    if item.value is not None:
        steps += inbox_steps(msgspec.structs.asdict(item.value))
    return steps


async def _bus_steps(call: ConsoleCall, event_id: str, client_message_id: str | None) -> list[Step]:
    """Return the steps on the bus of this host; cached, because a large bus takes long to search."""
    upstream = call.upstream
    search = partial(asyncio.to_thread, upstream.find_bus_steps, event_id, client_message_id, upstream.mesh)
    return await upstream.remember(f"bus steps of {event_id}", search) or []


async def send_message(call: ConsoleCall) -> HttpResponse:
    """Send a message as this host, or answer one."""
    form = await call.form()
    to, text, reply_to = form.one("to").strip(), form.one("message"), form.optional("reply_to")
    # a browser sends the lines of a form with CRLF
    text = text.replace("\r\n", "\n")
    sent = await call.upstream.daemon.send(to, text, reply_to_id=reply_to or None, via=VIA)
    note = f"Sent to {to}." if sent.recipient_paused is None else f"Sent to {to}, who is paused: the message waits."
    return call.notice(note)
