"""A lock around a piece of work, against a real relay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.client import Client
from posthouse.client.locks.held_lock import MARGIN
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock, SystemClock
from posthouse.model.errors import PosthouseError, Refused
from tests.client.hostile import Peer, lying_relay
from tests.client.house import House, open_house
from tests.client.waiting import PATIENCE_S, until

LEASE_S = 1.0


async def test_lock_is_held_inside_and_free_afterwards(house: House) -> None:
    alice, bob = house.client(), house.client()
    async with alice.lock("db/main", lease_s=30) as held:
        status = await bob.locks.inspect("db/main")
        assert (status.held, status.owner, status.token) == (True, alice.key.node, 0)
        assert (await alice.locks.inspect("db/main")).token == held.token
        assert held.is_valid() and 0 < held.remaining_s() <= 30 * (1 - MARGIN)
    assert not held.is_valid()
    assert not (await bob.locks.inspect("db/main")).held


async def test_lock_is_renewed_for_as_long_as_the_body_runs(house: House) -> None:
    alice = house.client()
    async with alice.lock("db", lease_s=LEASE_S) as held:
        renewed = 0
        async with asyncio.timeout(PATIENCE_S):
            while renewed < 4:  # each is a third of the lease: longer than one lease in all
                before = held.remaining_s()
                await asyncio.sleep(0.02)
                renewed += held.remaining_s() > before
        assert held.is_valid()
        status = await alice.locks.inspect("db")
        assert (status.held, status.token) == (True, held.token)


async def test_second_client_waits_and_then_has_its_whole_lease(house: House) -> None:
    alice, bob = house.client(), house.client()

    async def second() -> tuple[int, float]:
        async with bob.lock("db", lease_s=LEASE_S) as held:
            return held.token, held.remaining_s()

    async with alice.lock("db", lease_s=LEASE_S) as first:
        waiting = asyncio.create_task(second())
        await asyncio.sleep(1.5 * LEASE_S)  # longer than the lease that waits: it must be renewed on entry
        assert not waiting.done()
    token, remaining_s = await waiting
    assert token == first.token + 1 and remaining_s > LEASE_S / 2


async def test_lock_that_is_held_is_refused_when_the_wait_is_over(house: House) -> None:
    alice, bob = house.client(), house.client()
    async with alice.lock("db"):
        for wait_s in (0, 0.1):
            with pytest.raises(Refused) as refusal:
                async with bob.lock("db", wait_s=wait_s):
                    pytest.fail("two hold the lock")
            assert (refusal.value.code, refusal.value.fields["holder"]) == ("held", alice.key.node)


async def test_body_is_cancelled_when_another_node_holds_the_lock(house: House) -> None:
    alice, thief = house.client(), house.client(NodeKey(b"t" * 32))
    reached_end = False
    with pytest.raises(PosthouseError) as loss:
        async with alice.lock("db", lease_s=LEASE_S) as held:
            # the holder's own node releases behind its back, as a second process with the same key could
            twin = house.client(alice.key)
            await twin.locks.release("db", held.token)
            await thief.locks.acquire("db", lease_ms=60_000)
            await asyncio.sleep(PATIENCE_S)
            reached_end = True
    assert loss.value.code == "lock_lost" and not reached_end and not held.is_valid()


async def test_body_is_cancelled_before_the_lease_ends_when_the_relay_is_down(house: House) -> None:
    alice, clock = house.client(), SystemClock()
    with pytest.raises(PosthouseError) as loss:
        async with alice.lock("db", lease_s=LEASE_S) as held:
            began_ns = clock.boot_ns()
            await house.down()
            await asyncio.sleep(PATIENCE_S)
    assert loss.value.code == "lock_lost" and not held.is_valid()
    assert (clock.boot_ns() - began_ns) / 1e9 < LEASE_S + 0.5


async def test_lock_survives_a_restart_of_the_relay(house: House) -> None:
    alice, bob = house.client(), house.client()
    async with alice.lock("db", lease_s=10) as held:
        await house.down()
        await house.up()
        renewed = await alice.locks.renew("db", held.token, lease_ms=10_000)
        assert renewed.token == held.token
        with pytest.raises(Refused, match="held by"):
            await bob.locks.acquire("db", lease_ms=5_000)
    await until(lambda: not held.is_valid())
    assert (await bob.locks.acquire("db", lease_ms=5_000)).token > held.token


async def test_cancelling_the_body_from_outside_stays_a_cancellation_and_releases(house: House) -> None:
    alice, bob = house.client(), house.client()
    entered = asyncio.Event()

    async def work() -> None:
        async with alice.lock("db"):
            entered.set()
            await asyncio.sleep(PATIENCE_S)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (await bob.locks.inspect("db")).held


async def test_exception_of_the_body_passes_and_releases(house: House) -> None:
    alice = house.client()
    with pytest.raises(ZeroDivisionError):
        async with alice.lock("db"):
            raise ZeroDivisionError
    assert not (await alice.locks.inspect("db")).held


async def test_lock_granted_to_a_cancelled_caller_is_released(house: House) -> None:
    alice, bob, carol = house.client(), house.client(), house.client()
    async with alice.lock("db", lease_s=60):
        waiting = asyncio.create_task(bob.locks.acquire("db", lease_ms=600_000, wait_ms=60_000))
        await until(lambda: _waiters(house) == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(PATIENCE_S), carol.lock("db"):
        pass


async def test_acquire_that_is_cancelled_while_the_relay_is_down_is_not_sent_later(house: House) -> None:
    bob = house.client()
    await bob.connect()
    await house.down()
    await until(lambda: not bob.statistics()["is_up"])
    waiting = asyncio.create_task(bob.locks.acquire("db", lease_ms=600_000, wait_ms=60_000))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await house.up()
    await bob.locks.acquire("db", lease_ms=60_000)
    # the only grant: the new connection has not acquired the lock and released it again before this
    assert house.server is not None
    assert len(await house.server.context.engine.store.journal(0, 10, ["lock.acquired"])) == 1


async def test_retry_under_the_request_id_of_a_cancelled_call_keeps_its_grant(house: House) -> None:
    alice, bob = house.client(), house.client()
    asked = {"lease_ms": 60_000, "wait_ms": 60_000, "request_id": "q1"}
    async with alice.lock("db", lease_s=60):
        first = asyncio.create_task(bob.locks.acquire("db", **asked))  # type: ignore[arg-type]
        await until(lambda: _waiters(house) == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = asyncio.create_task(bob.locks.acquire("db", **asked))  # type: ignore[arg-type]
        await until(lambda: _waiters(house) == 2)
    grant = await second
    status = await bob.locks.inspect("db")
    assert (status.held, status.owner, status.token) == (True, bob.key.node, grant.token)


async def test_list_pages_through_locks(house: House) -> None:
    alice = house.client()
    for resource in ("a", "b", "c"):
        await alice.locks.acquire(resource, lease_ms=60_000)
    page = await alice.locks.list(limit=2)
    assert [lock.resource for lock in page.locks] == ["a", "b"] and page.cursor is not None
    rest = await alice.locks.list(cursor=page.cursor)
    assert [lock.resource for lock in rest.locks] == ["c"] and rest.cursor is None


async def test_deadline_counts_from_before_the_request_and_never_from_the_relays_clock(tmp_path: Path) -> None:
    """The relay's wall clock is a year ahead of the client's, and steps: the client does not care."""
    relay_clock, own = FakeClock(), FakeClock(wall_ns=1_700_000_000_000_000_000)
    async with open_house(tmp_path, clock=relay_clock) as house:
        alice = house.client(clock=own)
        await alice.connect()
        relay_clock.step_wall(365 * 86_400)
        async with alice.lock("db", lease_s=10) as held:
            assert held.remaining_s() == pytest.approx(10 * (1 - MARGIN))
            own.step_wall(-3_600)
            assert held.remaining_s() == pytest.approx(10 * (1 - MARGIN))


async def test_holder_that_was_suspended_beyond_its_lease_loses_it_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_house(tmp_path, clock=FakeClock()) as house:
        alice = house.client(clock=clock)
        with pytest.raises(PosthouseError) as loss:
            async with alice.lock("db", lease_s=10) as held:
                clock.advance(9.4)
                assert held.is_valid()
                clock.advance(0.2)  # the margin: the relay would still say that it is held
                assert not held.is_valid()
                await asyncio.sleep(PATIENCE_S)
        assert loss.value.code == "lock_lost"


def _waiters(house: House) -> int:
    assert house.server is not None
    return house.server.context.engine.locks.waiters


def test_lease_and_resource_are_checked_before_anything_is_sent() -> None:
    client = Client("http://127.0.0.1:1", NodeKey(b"x" * 32))
    with pytest.raises(Refused, match="lease"):
        client.lock("db", lease_s=0.5)
    with pytest.raises(Refused, match="resource"):
        client.lock("")


async def test_operation_without_an_answer_ends_after_its_time_and_the_next_one_works() -> None:
    async def answer_the_second(peer: Peer) -> None:
        await peer.greet()
        await peer.receive()
        _, number, _, given = await peer.receive()
        await peer.send("LOCKED", number, {"resource": given["resource"], "owner": peer.key.node, "token": 7})
        await peer.await_end()

    async with lying_relay(answer_the_second) as url, Client(url, NodeKey.generate()) as client:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PosthouseError) as late:
                await client.locks.release("db", 7, timeout_s=0.05)
            await client.locks.release("db", 7)
    assert late.value.code == "answer_missing"
