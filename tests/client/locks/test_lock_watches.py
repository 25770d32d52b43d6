"""Watches of locks, against a real relay."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from posthouse.client import Client
from posthouse.model.errors import PosthouseError
from posthouse.relay.locks.service import Locks
from tests.client.house import House
from tests.client.waiting import PATIENCE_S, until

LEASE_MS = 60_000


@pytest.fixture
def alice(house: House) -> Client:
    return house.client()


@pytest.fixture
def bob(house: House) -> Client:
    return house.client()


async def test_watch_shows_the_lock_now_and_after_each_change(alice: Client, bob: Client) -> None:
    async with asyncio.timeout(PATIENCE_S), aclosing(bob.locks.watch("db")) as states:
        assert not (await anext(states)).held
        first = await alice.locks.acquire("db", lease_ms=LEASE_MS)
        shown = await anext(states)
        assert (shown.held, shown.owner, shown.token) == (True, alice.key.node, 0)
        await alice.locks.renew("db", first.token, lease_ms=LEASE_MS)  # changes no holder
        await alice.locks.release("db", first.token)
        assert not (await anext(states)).held


async def test_watch_goes_on_after_the_relay_was_away(house: House, alice: Client, bob: Client) -> None:
    async with asyncio.timeout(PATIENCE_S), aclosing(bob.locks.watch("db")) as states:
        assert not (await anext(states)).held
        await house.down()
        await house.up()
        await alice.locks.acquire("db", lease_ms=LEASE_MS)
        async for status in states:
            if status.held:
                break
        assert status.owner == alice.key.node


async def test_watchers_of_one_name_share_a_watch_that_ends_with_the_last(
    house: House, alice: Client, bob: Client
) -> None:
    def watched() -> int:
        assert house.server is not None
        locks = house.server.context.engine.locks
        assert isinstance(locks, Locks)
        return len(locks.watches)

    async with asyncio.timeout(PATIENCE_S):
        one, two = bob.locks.watch("db"), bob.locks.watch("db")
        assert not (await anext(one)).held and not (await anext(two)).held
        assert watched() == 1
        await one.aclose()
        await alice.locks.acquire("db", lease_ms=LEASE_MS)
        assert (await anext(two)).owner == alice.key.node
        await two.aclose()
        await until(lambda: watched() == 0)


async def test_watch_without_permission_raises_the_refusal(bob: Client) -> None:
    with pytest.raises(PosthouseError) as refusal:
        await anext(bob.locks.watch("db", mesh="elsewhere"))
    assert refusal.value.code == "not_member"


async def test_closed_client_ends_its_watches(bob: Client) -> None:
    states = bob.locks.watch("db")
    await anext(states)
    waiting = asyncio.ensure_future(anext(states))
    await bob.close()
    with pytest.raises(PosthouseError) as end:
        await waiting
    assert end.value.code == "client_closed"
