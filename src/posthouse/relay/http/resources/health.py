"""/healthz and /readyz: whether the process lives, and whether it takes writes."""

from __future__ import annotations

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.model.errors import error
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Access, Route


class Health(msgspec.Struct):
    """The process answers."""

    status: str = "ok"


async def healthz(call: Call) -> Answer:
    """Answer as long as the event loop turns."""
    return json_answer(Health())


async def readyz(call: Call) -> Answer:
    """Answer 200 while events are accepted, 503 while the disk is full or the relay stops."""
    state = call.edge.core.state
    if state != "open":
        raise error("relay_not_ready", reason=f"its store is {state}")
    return json_answer(Health("ready"))


ROUTES = (
    Route("GET", "/healthz", healthz, "Tell whether the process lives", Access.ANYBODY, answers={200: Health}),
    Route("GET", "/readyz", readyz, "Tell whether events are accepted", Access.ANYBODY, answers={200: Health}),
)
