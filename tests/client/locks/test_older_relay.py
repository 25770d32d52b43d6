"""A client of today with a relay from before lock sessions: it must not send what that relay refuses."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.client import Client
from posthouse.keys import NodeKey
from posthouse.model.errors import Refused
from tests.client.hostile import Peer, lying_relay
from tests.client.house import House

KNOWN = {"resource", "lease_ms", "mesh", "request_id", "wait_ms", "token"}


async def answer_locks(peer: Peer) -> None:
    """Answer as a relay did that knew no sessions, and refused what it did not know."""
    await peer.greet()
    while True:
        try:
            _, number, op, given = await peer.receive()
        except TypeError:  # the client has closed the connection
            return
        if unknown := set(given) - KNOWN:
            reason = f"Object contains unknown field `{min(unknown)}`"
            await peer.send("LOCKED", number, {"code": "body_invalid", "reason": reason})
            continue
        answer: dict[str, Any] = {"resource": given["resource"], "owner": peer.key.node, "token": 7}
        if op != "release":
            answer |= {"lease_ms": given["lease_ms"], "expires_at_ns": 1}
        await peer.send("LOCKED", number, answer)


async def test_lock_works_with_a_relay_that_does_not_announce_sessions() -> None:
    async with lying_relay(answer_locks) as url, Client(url, NodeKey.generate()) as client:
        async with client.lock("db", lease_s=30) as held:
            assert held.token == 7
        grant = await client.locks.acquire("db", lease_ms=5_000, session="mine")
        assert (grant.token, grant.session) == (7, "")
        assert (await client.locks.renew("db", 7, lease_ms=5_000, session="mine")).token == 7


async def test_tree_is_refused_by_a_relay_that_would_not_lock_what_is_below() -> None:
    async with lying_relay(answer_locks) as url, Client(url, NodeKey.generate()) as client:
        with pytest.raises(Refused) as refusal:
            await client.locks.acquire("src", lease_ms=5_000, tree=True)
        assert refusal.value.code == "body_invalid"


async def test_sessions_are_sent_to_a_relay_that_announces_them(house: House) -> None:
    alice = house.client()
    assert (await alice.locks.acquire("db", lease_ms=5_000, session="mine")).session == "mine"
