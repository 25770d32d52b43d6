"""Authentication of a request for either door: a proof for a challenge, checked and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.relay.accept.check import check_proof
from posthouse.relay.auth.proof import read_proof
from posthouse.relay.edge import Edge


async def prove_challenge(edge: Edge, event: bytes, holder: str | None = None) -> str:
    """Return the node that answered a challenge given to `holder`, or to the node itself when that is None.

    The challenge is spent only by a valid proof, so that nobody else can use it up.
    """
    with _counting(edge):
        return _spend(edge, await edge.core.verify(event), holder)


def prove_challenge_now(edge: Edge, event: bytes, holder: str) -> str:
    """Do the same at once, for a connection whose next command depends on it."""
    with _counting(edge):
        return _spend(edge, check_proof(event), holder)


def _spend(edge: Edge, signed: Event, holder: str | None) -> str:
    proof = read_proof(signed, edge.relay, edge.clock.wall_ns())
    if proof.challenge is None:
        raise error("proof_invalid", reason="it needs exactly one challenge tag with one value")
    edge.challenges.spend(proof.challenge, holder or proof.node)
    return proof.node


@contextmanager
def _counting(edge: Edge) -> Iterator[None]:
    try:
        yield
    except PosthouseError as failure:
        edge.meters.count("posthouse_relay_authentications_total", failure.code)
        raise
    edge.meters.count("posthouse_relay_authentications_total", "ok")
