"""Routes of the Pinch wire: /ws, /health and /agents/register. A relay without Pinch does not have them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.keys import public_key
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import node_from_key
from posthouse.model.pinch import address_of
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Access, Route
from posthouse.relay.pinch.service import Pinch
from posthouse.relay.pinch.socket import serve_pinch


class PinchHealth(msgspec.Struct):
    """How the wire is doing."""

    status: str
    #: agents that are logged in
    connections: int
    relay_host: str


class Registration(msgspec.Struct):
    """An agent's public key, as standard base64."""

    public_key: Annotated[str, Meta(max_length=128)]


class Registered(msgspec.Struct):
    """The address of a key at this relay, and the code that goes with it."""

    address: str
    claim_code: str


def pinch_routes(pinch: Pinch) -> tuple[Route, ...]:
    """Return the routes of a relay that speaks Pinch."""

    async def ws(call: Call) -> Answer:
        """Speak the Pinch wire until either side ends it."""
        return Answer(101, response=await serve_pinch(call.edge, pinch, call.request))

    async def health(_call: Call) -> Answer:
        """Tell how many agents are connected."""
        return json_answer(PinchHealth(_state(pinch), len(pinch), pinch.settings.host))

    async def register(call: Call) -> Answer:
        """Return the address of a key; any key may be registered."""
        key = _read_key((await call.body(Registration)).public_key)
        return json_answer(Registered(address_of(key, pinch.settings.host), pinch.claim_code(key)))

    return (
        Route("GET", "/ws", ws, "Open the Pinch wire", Access.ANYBODY, answers={101: None}, may_wait=True),
        Route("GET", "/health", health, "Tell how the Pinch wire is doing", Access.ANYBODY, answers={200: PinchHealth}),
        Route(
            "POST",
            "/agents/register",
            register,
            "Get the Pinch address of a key",
            Access.ANYBODY,
            bodies=(Registration,),
            answers={200: Registered},
        ),
    )


def _state(pinch: Pinch) -> str:
    """Return `ok`, or what keeps the store from taking envelopes."""
    state = pinch.core.state
    return "ok" if state == "open" else state


def _read_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as fault:
        raise error("pinch_key_invalid", reason="it is not standard base64") from fault
    try:
        return public_key(node_from_key(key))
    except PosthouseError as fault:
        raise error("pinch_key_invalid", reason=str(fault.fields.get("reason", fault))) from fault
