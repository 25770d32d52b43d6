"""A client of today with a newer relay: words and fields that it does not know yet do not stop it."""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.client import Client
from posthouse.keys import NodeKey
from posthouse.model.message_api import DeliveryState
from tests.client.hostile import Peer, lying_relay

GRANT = {"resource": "db", "owner": "ed25519:a", "token": 7, "lease_ms": 5_000, "expires_at_ns": 1}
STATUS = {"resource": "db", "held": True, "owner": "ed25519:a", "token": 0, "remaining_ms": 9}


async def answer_locks(peer: Peer) -> None:
    await peer.greet()
    answers: dict[str, dict[str, Any]] = {
        "acquire": GRANT | {"mode": "upgradable", "colour": "red"},
        "inspect": STATUS | {"holders": [{**STATUS, "mode": "upgradable"}]},
    }
    for _ in answers:
        _, number, op, _given = await peer.receive()
        await peer.send("LOCKED", number, answers[op])
    await peer.await_end()


async def test_lock_in_a_mode_of_a_newer_relay_is_read() -> None:
    async with lying_relay(answer_locks) as url, Client(url, NodeKey.generate()) as client:
        assert (await client.locks.acquire("db", lease_ms=5_000)).mode == "upgradable"
        assert (await client.locks.inspect("db")).holders[0].mode == "upgradable"


def test_state_of_a_newer_relay_is_read() -> None:
    times = {"queued_at_ns": 1, "sent_at_ns": None, "closed_at_ns": None}
    delivery = {"recipient": "r", "state": "postponed", "was_stored": None, "attempts": 0, "reason": None, **times}
    assert msgspec.convert(delivery, DeliveryState).state == "postponed"
