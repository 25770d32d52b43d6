"""Authentication of a request for either door: a proof for a challenge, checked and counted."""

from __future__ import annotations

from posthouse.model.errors import PosthouseError, error
from posthouse.relay.auth.proof import read_proof
from posthouse.relay.edge import Edge


async def prove_challenge(edge: Edge, event: bytes, holder: str | None) -> str:
    """Return the node that answered a challenge given to `holder`, or to the node itself when that is None.

    The challenge is spent only by a valid proof, so that nobody else can use it up.
    """
    try:
        signed = await edge.core.verify(event)
        proof = read_proof(signed, edge.relay, edge.clock.wall_ns())
        if proof.challenge is None:
            raise error("proof_invalid", reason="it needs exactly one challenge tag with one value")
        edge.challenges.spend(proof.challenge, holder or proof.node)
    except PosthouseError as failure:
        edge.meters.count("posthouse_relay_authentications_total", failure.code)
        raise
    edge.meters.count("posthouse_relay_authentications_total", "ok")
    return proof.node
