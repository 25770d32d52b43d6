"""What requests and streams share: the engine, authentication, limits, live subscriptions and metrics.

The server makes one context per relay process and passes it to each request and stream. This module also verifies
the proof that answers a challenge, and lists the features that HELLO and /v1/info report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from aiohttp.web_request import BaseRequest

from posthouse.files import read_private
from posthouse.http.call import Call
from posthouse.http.caller_address import AddressRule
from posthouse.http.guard import bearer_token
from posthouse.http.outbound import OutboundAccount
from posthouse.keys import NodeKey, same_token
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, decode_event
from posthouse.model.limits import BATCH_MAX_EVENTS
from posthouse.relay.accept.verify import verify_proof
from posthouse.relay.auth import Challenges, Tokens, read_proof
from posthouse.relay.engine import RelayEngine
from posthouse.relay.live import Live
from posthouse.relay.messages.settings import message_features
from posthouse.relay.metrics import Meters
from posthouse.relay.wire.edge_limits import EdgeLimits
from posthouse.relay.wire.websocket import WebSocketConnection


def features_of(context: RelayContext) -> dict[str, Any]:
    """Return the features of this relay, with their parameters, for HELLO and /v1/info."""
    parameters = {"batch_signatures": BATCH_MAX_EVENTS} | message_features(context.engine.settings.deliveries)
    return dict.fromkeys(_FEATURES, True) | parameters


_FEATURES = ("events", "live", "lists", "meshes", "locks", "lock_sessions", "requests", "deletions", "rotations")


class EventStream(Protocol):
    """An open GET /v1/events/stream."""

    def end(self, failure: PosthouseError) -> None:
        """Send why the stream ends and where to continue, and end it."""
        ...


@dataclass(slots=True)
class RelayContext:
    """The parts of a running relay that requests and streams share."""

    engine: RelayEngine
    key: NodeKey
    clock: Clock
    limits: EdgeLimits
    live: Live
    challenges: Challenges
    #: of streams, whose time is boot time, so no step of the wall clock affects them
    stream_challenges: Challenges
    tokens: Tokens
    meters: Meters
    #: unsent bytes of all connections
    outbound: OutboundAccount
    #: open WebSocket streams
    connections: dict[WebSocketConnection, None] = field(default_factory=dict)
    #: open event streams over HTTP
    event_streams: dict[EventStream, None] = field(default_factory=dict)
    #: other relays of the store that are connected to this one
    peers: dict[WebSocketConnection, None] = field(default_factory=dict)
    #: how to find the address that a request counts for
    addresses: AddressRule = field(default_factory=AddressRule)
    #: HOST:PORT that invites carry
    address: str = ""
    #: holds the token of /metrics; read for each request, so that it can be replaced
    metrics_token_file: Path | None = None
    is_stopping: bool = False
    #: COUNT and LOCK list commands that are not answered yet, on all streams
    reads: int = 0

    @property
    def relay(self) -> str:
        """The relay's node id."""
        return self.key.node

    def is_member(self, node: str | None) -> bool:
        """Return True if a node is a member of a mesh."""
        return node is not None and self.engine.meshes.has_member(node)


@dataclass(slots=True)
class RelayCall(Call[RelayContext]):
    """A request to the relay's HTTP API."""

    @property
    def node(self) -> str:
        """The node that the request's token belongs to; raises if there is no valid token, or its key was retired."""
        header = self.request.headers.get("Authorization")
        if header is None:
            raise error("authentication_required")
        token = bearer_token(header)
        if token is None:
            raise error("token_invalid")
        return check_key(self.context, self.context.tokens.node_of(token))

    @property
    def is_stranger(self) -> bool:
        return not self.context.is_member(self.known_node)

    @property
    def payer(self) -> str | None:
        """What is charged for events of keys that may not write: the address, or the member whose token it is."""
        return self.known_node if self.address is None or not self.is_stranger else self.address

    def charge_join(self) -> None:
        """Charge the address for one signature, or raise stranger_rate_exceeded: any key can ask to join."""
        self.context.engine.strangers.check(self.address)
        self.context.engine.strangers.charge(self.address)

    @property
    def known_node(self) -> str | None:
        """The node of the request's token, or None without a valid one."""
        try:
            return self.node
        except PosthouseError:
            return None

    @property
    def has_metrics_token(self) -> bool:
        """True if the request has the token of relay.metrics_token_file, which opens /metrics and nothing else."""
        path = self.context.metrics_token_file
        if path is None or self.route.path != METRICS_PATH:
            return False
        token = bearer_token(self.request.headers.get("Authorization", ""))
        with suppress(PosthouseError):  # the file was damaged since the start: then only admins may read
            return token is not None and same_token(token, read_metrics_token(path))
        return False


NS_HEADER = "Posthouse-Ns"
NS_AS_TEXT = "string"


def wants_ns_as_text(request: BaseRequest) -> bool:
    """Return True if the caller asks for nanoseconds as decimal text, because its JSON numbers are not exact."""
    given = request.headers.get(NS_HEADER)
    if given not in (None, NS_AS_TEXT):
        raise error("parameter_invalid", name=NS_HEADER, reason=f"its only value is {NS_AS_TEXT}")
    return given is not None


METRICS_PATH = "/metrics"
_METRICS_TOKEN = re.compile(rb"[A-Za-z0-9_-]{16,200}")


def read_metrics_token(path: Path) -> bytes:
    """Return the token in a private file, or raise metrics_token_invalid."""
    try:
        token = read_private(path).strip()
    except OSError as failure:
        raise error("metrics_token_invalid", path=str(path), reason=failure.strerror or str(failure)) from failure
    if _METRICS_TOKEN.fullmatch(token) is None:
        raise error("metrics_token_invalid", path=str(path), reason="its content is not a valid token")
    return token


def check_key(context: RelayContext, node: str) -> str:
    """Return a node, or raise an error if its key may not be used any more."""
    refusal = context.engine.meshes.key_error(node)
    if refusal is not None:
        raise refusal
    return node


async def prove_challenge(context: RelayContext, event: bytes, address: str | None) -> str:
    """Return the node whose proof answers a challenge that was issued to it; the login counts for an address.

    Only a valid proof spends the challenge, so no other client can use it up.
    """
    with _login(context, event, address):
        node, challenge = _read_answer(context, await context.engine.verify(event))
        await context.challenges.spend(challenge, node)
        return node


def prove_challenge_now(context: RelayContext, event: bytes, address: str | None, holder: str) -> str:
    """Do the same without waiting, for a stream whose next command depends on it.

    The stream is the holder of its challenge and takes one proof, so the challenge is not kept as spent.
    """
    with _login(context, event, address):
        node, challenge = _read_answer(context, verify_proof(event))
        context.stream_challenges.check(challenge, holder)
        return node


def _read_answer(context: RelayContext, signed: Event) -> tuple[str, str]:
    """Return the signer of a proof and the challenge that it answers."""
    proof = read_proof(signed, context.relay, context.clock.wall_ns())
    if proof.challenge is None:
        raise error("proof_invalid", reason="it needs exactly one challenge tag with one value")
    return check_key(context, proof.node), proof.challenge


@contextmanager
def _login(context: RelayContext, event: bytes, address: str | None) -> Iterator[None]:
    """Count a login; if its key is a member of no mesh, charge the address for it, because any key can make a proof.

    A member is charged only for wrong proofs, and to its own rate: strangers at its address cannot keep it out.
    """
    meters, strangers = context.meters, context.engine.strangers
    try:
        node = decode_event(event).pubkey
        is_member = context.engine.meshes.has_member(node)
        payer = f"{node} at {address}" if is_member and address is not None else address
        strangers.check(payer)
        strangers.charge(payer)
        yield
    except PosthouseError as failure:
        meters.count("posthouse_relay_authentications_total", failure.code)
        raise
    if is_member:
        strangers.give_back(payer)
    meters.count("posthouse_relay_authentications_total", "ok")
