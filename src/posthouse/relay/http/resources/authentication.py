"""/v1/auth: a challenge for a key, and a token for its answer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.keys import public_key
from posthouse.model.event import Event
from posthouse.relay.auth.check import prove_challenge
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import NODE_ID
from posthouse.relay.http.route import Access, Route


class ChallengeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Who wants to authenticate."""

    pubkey: Annotated[str, NODE_ID]


class ChallengeAnswer(msgspec.Struct):
    """What to sign: kind 22242 with ["relay", relay] and ["challenge", challenge]."""

    challenge: str
    relay: str
    expires_at_ns: int


class ProofBody(msgspec.Struct, forbid_unknown_fields=True):
    """A signed event of kind 22242."""

    event: Event


class TokenAnswer(msgspec.Struct):
    """A token, to be sent as `Authorization: Bearer TOKEN`."""

    token: str
    expires_at_ns: int


async def challenge(call: Call) -> Answer:
    """Give a challenge to a key; it can be answered once, within a minute."""
    node = (await call.body(ChallengeRequest)).pubkey
    public_key(node)
    given = call.edge.challenges.issue(node)
    return json_answer(ChallengeAnswer(given.text, call.edge.relay, given.expires_at_ns))


async def authenticate(call: Call) -> Answer:
    """Give a token to whoever answered a challenge."""
    event = (await call.body(ProofBody)).event
    node = await prove_challenge(call.edge, msgspec.json.encode(event))
    token = call.edge.tokens.issue(node)
    return json_answer(TokenAnswer(token.text, token.expires_at_ns))


ROUTES = (
    Route(
        "POST",
        "/v1/auth/challenge",
        challenge,
        "Ask for a challenge",
        Access.ANYBODY,
        bodies=(ChallengeRequest,),
        answers={200: ChallengeAnswer},
    ),
    Route(
        "POST",
        "/v1/auth",
        authenticate,
        "Answer a challenge with a signed event",
        Access.ANYBODY,
        bodies=(ProofBody,),
        answers={200: TokenAnswer},
    ),
)
