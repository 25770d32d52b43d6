"""`wait`: sleep until there is unread mail, or the time is over. Nothing else wakes an agent that is idle.

The wait is bounded below what clients usually allow a call, tells progress, and ends at the daemon too when the
caller cancels. A daemon that is restarted meanwhile is waited for; one that is down at first is an error at once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.mcp.call import ToolCall
from posthouse.mcp.message import ShownMessage
from posthouse.mcp.tools.inbox import SHOWN, unread
from posthouse.mcp.tools.spec import ToolSpec


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=0)]


class Answer(msgspec.Struct):
    messages: list[ShownMessage]
    waited_s: float


async def run(call: ToolCall, given: Arguments) -> Answer:
    seconds = call.check_wait("seconds", given.seconds)
    start_ns = call.clock.boot_ns()
    items = await call.daemon.inbox(unread=True, limit=SHOWN)
    if not items and seconds:
        async with call.waiting(seconds, "no mail yet"):
            items = await call.daemon.wait(max(0.0, seconds - call.since_s(start_ns)), limit=SHOWN)
    return Answer(unread(items).messages, round(call.since_s(start_ns), 1))


WAIT = ToolSpec(
    "wait",
    "Wait for unread mail; returns at once if there is some. Empty: time is over, call again. Nothing else wakes you.",
    Arguments,
    Answer,
    run,
    is_read_only=True,
    bounded_by_wait=("seconds",),
)
