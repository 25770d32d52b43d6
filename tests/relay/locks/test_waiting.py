"""Waiting for locks: first come first served, no overtaking, and no refused waiter holds the lock."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import aiohttp
import pytest

from posthouse.model.lock_api import LockGrant
from posthouse.relay.wire.lock_operations import LockAnswer
from tests.relay.edge import Edge
from tests.relay.locks.desk import PATIENCE_S, Desk, code_of, node, token_of
from tests.relay.locks.transports import LockRelay, granted
from tests.relay.locks.until import until

ALICE, BOB, CAROL, DAVE = (node(number) for number in range(1, 5))


@pytest.mark.sqlite
async def test_thousand_waiters_are_served_in_the_order_they_came(desk: Desk) -> None:
    token = await desk.granted(ALICE)
    owners = [node(number) for number in range(10, 1_010)]
    waiting = [desk.acquire(owner, wait_ms=600_000) for owner in owners]
    served: list[int] = []
    for index, future in enumerate(waiting):
        future.add_done_callback(lambda _, index=index: served.append(index))  # type: ignore[misc]
    async with asyncio.timeout(PATIENCE_S):
        await desk.release(ALICE, token)
        for owner, future in zip(owners, waiting, strict=True):
            token = token_of(await future)
            assert len(served) == owners.index(owner) + 1
            await desk.release(owner, token)
    assert served == list(range(1_000)) and token == 1_001


async def test_waiters_of_both_transports_share_one_queue(relay: LockRelay) -> None:
    alice = await relay.node()
    token = granted(await alice.ask("acquire", resource="db", lease_ms=5_000))["token"]
    waiting = []
    for place in range(10):
        way = await relay.node(transport="http" if place % 2 else "stream")
        waiting.append((way, asyncio.create_task(way.ask("acquire", resource="db", lease_ms=5_000, wait_ms=60_000))))
        await relay.waiting(place + 1)
    await alice.ask("release", resource="db", token=token)
    for place, (way, task) in enumerate(waiting):
        grant = granted(await task)
        assert (grant["owner"], grant["token"]) == (way.node, token + 1 + place)
        await way.ask("release", resource="db", token=grant["token"])


@pytest.mark.sqlite
async def test_a_lone_request_that_may_wait_is_decided_without_a_hand_over_to_the_writer(desk: Desk) -> None:
    deciding: list[threading.Thread] = []

    def is_gone() -> bool:
        deciding.append(threading.current_thread())
        return False

    async with asyncio.timeout(PATIENCE_S):
        while threading.current_thread() not in deciding:  # for a while after other work the writer decides
            token = await desk.granted(ALICE, wait_ms=60_000, is_gone=is_gone)
            await desk.release(ALICE, token)
            desk.clock.advance(1)
            await asyncio.sleep(0)


async def test_release_and_the_next_grant_are_one_commit(desk: Desk) -> None:
    token = await desk.granted(ALICE)
    waiting = desk.acquire(BOB, wait_ms=60_000)
    await desk.inspect()
    before = desk.core.store.statistics()["batches"]
    await desk.release(ALICE, token)
    assert token_of(await waiting) == token + 1
    assert desk.core.store.statistics()["batches"] == before + 1


async def test_waiter_is_served_once_even_if_its_grant_is_released_in_the_same_batch(desk: Desk) -> None:
    await desk.granted(ALICE)
    first, second = desk.acquire(BOB, wait_ms=60_000), desk.acquire(CAROL, wait_ms=60_000)
    await desk.inspect()
    # in one batch: the lock goes to the first, which guesses its token and releases it before it gets the grant
    await asyncio.gather(desk.release(ALICE, 1), desk.release(BOB, 2))
    async with asyncio.timeout(PATIENCE_S):
        assert (token_of(await first), token_of(await second)) == (2, 3)
    assert (await desk.inspect()).owner == CAROL


async def test_newcomer_cannot_overtake_the_queue(desk: Desk) -> None:
    await desk.granted(ALICE)
    waiting = desk.acquire(BOB, wait_ms=60_000)
    await desk.inspect()
    desk.clock.advance(5)  # the lease is over, and no transaction has noticed it yet
    newcomer = await desk.acquire(CAROL)
    assert code_of(newcomer) == "held"
    assert token_of(await waiting) == 2


async def test_end_of_a_lease_wakes_the_head_of_the_queue(desk: Desk) -> None:
    await desk.granted(ALICE)
    first, second = desk.acquire(BOB, wait_ms=60_000), desk.acquire(CAROL, wait_ms=60_000)
    await desk.inspect()
    desk.clock.advance(5)
    async with asyncio.timeout(PATIENCE_S):
        assert token_of(await first) == 2
    assert not second.done()


async def test_renewed_lease_keeps_the_queue_waiting(desk: Desk) -> None:
    token = await desk.granted(ALICE)
    waiting = desk.acquire(BOB, wait_ms=60_000)
    desk.clock.advance(4)
    await desk.renew(ALICE, token)
    desk.clock.advance(4)  # past the first end
    for _ in range(3):
        await desk.inspect()
    assert not waiting.done() and (await desk.inspect()).owner == ALICE
    desk.clock.advance(1)
    async with asyncio.timeout(PATIENCE_S):
        assert token_of(await waiting) == 2


async def test_waiter_whose_connection_is_gone_is_skipped(desk: Desk) -> None:
    token = await desk.granted(ALICE)
    gone = False
    first = desk.acquire(BOB, wait_ms=600_000, is_gone=lambda: gone)
    second = desk.acquire(CAROL, wait_ms=600_000)
    await desk.inspect()
    gone = True
    await desk.release(ALICE, token)
    assert token_of(await second) == 2
    assert not first.done()
    owners = [record.actor for record in await desk.core.store.journal(0, 100, ["lock.acquired", "lock.taken_over"])]
    assert owners == [ALICE, CAROL]


async def test_waiter_that_is_gone_leaves_the_queue(desk: Desk) -> None:
    await desk.granted(ALICE)
    desk.acquire(BOB, wait_ms=600_000, is_gone=lambda: True)
    await until(lambda: not desk.locks.waiters)


@pytest.mark.parametrize("transport", ["http", "stream"])
async def test_closed_connection_leaves_the_queue(relay: LockRelay, transport: str) -> None:
    alice, carol = await relay.node(), await relay.node()
    token = granted(await alice.ask("acquire", resource="db", lease_ms=60_000))["token"]
    async with aiohttp.ClientSession() as session:
        other = Edge(relay.edge.server, session, relay.edge.admin)
        bob = await relay.node(transport=transport, edge=other)
        leaving = asyncio.create_task(bob.ask("acquire", resource="db", lease_ms=60_000, wait_ms=600_000))
        await relay.waiting(1)
        staying = asyncio.create_task(carol.ask("acquire", resource="db", lease_ms=60_000, wait_ms=600_000))
        await relay.waiting(2)
    leaving.cancel()
    await relay.waiting(1)
    await alice.ask("release", resource="db", token=token)
    assert granted(await staying)["owner"] == carol.node


async def test_wait_of_a_caller_that_is_gone_comes_to_its_end(desk: Desk) -> None:
    await desk.granted(ALICE)
    abandoned = desk.acquire(BOB, is_gone=lambda: True, wait_ms=600_000)
    await asyncio.wait([abandoned], timeout=PATIENCE_S)
    assert abandoned.cancelled(), "the request would stay open until the relay stops, and delay that"


async def test_own_request_that_waits_twice_gets_one_grant(desk: Desk) -> None:
    token = await desk.granted(ALICE)
    storm = [desk.acquire(BOB, wait_ms=60_000, request_id="q1") for _ in range(50)]
    await desk.inspect()
    await desk.release(ALICE, token)
    answers = await asyncio.gather(*storm)
    assert len(set(answers)) == 1 and token_of(answers[0]) == 2
    assert (await desk.inspect()).token == 2


async def test_retry_storm_makes_one_grant(relay: LockRelay) -> None:
    alice = await relay.node()
    asked = {"resource": "db", "lease_ms": 5_000, "request_id": "q1"}
    storm = [alice.ask("acquire", **asked, **({"wait_ms": 1_000} if turn % 2 else {})) for turn in range(100)]
    answers = [granted(reply) for reply in await asyncio.gather(*storm)]
    assert all(answer == answers[0] for answer in answers)
    assert (await alice.ask("inspect", resource="db"))[1]["token"] == 1


async def test_repeated_release_and_renew_change_nothing_more(desk: Desk) -> None:
    token = await desk.granted(ALICE)
    assert {
        code_of(answer) for answer in (await asyncio.gather(*[desk.release(ALICE, token) for _ in range(20)]))[1:]
    } == {"not_holder"}
    assert await desk.granted(BOB) == token + 1
    assert code_of(await desk.release(ALICE, token)) == "not_holder"
    assert (await desk.inspect()).owner == BOB


async def test_closing_answers_every_waiter(desk: Desk) -> None:
    await desk.granted(ALICE)
    waiting = desk.acquire(BOB, wait_ms=600_000)
    await desk.inspect()
    desk.locks.close()
    assert code_of(await waiting) == "relay_stopping"


@pytest.mark.sqlite
async def test_no_refused_waiter_holds_the_lock(desk: Desk) -> None:
    """Waits end, are repeated and overlap with releases; answers and journal agree on every grant."""
    chance = random.Random(7)
    told: Counter[tuple[str, int]] = Counter()

    async def give_back(owner: str, token: int) -> None:
        told[owner, token] += 1
        await asyncio.sleep(chance.choice([0, 0.001, 0.003]))
        again = desk.acquire(owner, wait_ms=3) if chance.random() < 0.5 else None  # while it still holds the lock
        assert not isinstance(await desk.release(owner, token), Exception)
        if again is not None and isinstance(grant := await again, LockGrant):
            await give_back(owner, grant.token)

    async def work(owner: str) -> None:
        for turn in range(60):
            wait_ms = chance.choice([0, 1, 2, 5, 20])
            request_id = f"{turn}" if chance.random() < 0.5 else None
            asked = [desk.acquire(owner, wait_ms=wait_ms, request_id=request_id)]
            if request_id is not None and chance.random() < 0.5:
                asked.append(desk.acquire(owner, wait_ms=wait_ms, request_id=request_id))
            for token in {answer.token for answer in await asyncio.gather(*asked) if isinstance(answer, LockGrant)}:
                await give_back(owner, token)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(work(node(number)) for number in range(20, 28)))
    records = await desk.core.store.journal(0, 100_000, ["lock.acquired", "lock.taken_over"])
    written = Counter((record.actor or "", int(record.decoded_body()["token"])) for record in records)
    assert told == written
    assert desk.locks.waiters == 0 and not (await desk.inspect()).held


async def test_waiter_beyond_the_total_limit_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.locks._queues, "_max_in_all", 1)
    await desk.granted(ALICE, "a")
    await desk.granted(ALICE, "b")
    waiting = desk.acquire(BOB, "a", wait_ms=60_000)
    refusal: LockAnswer = await desk.acquire(CAROL, "b", wait_ms=60_000)
    assert code_of(refusal) == "wait_queue_full"
    assert not waiting.done()
