"""The table of the protocol, row by row: what each operation answers in each state, on both transports."""

from __future__ import annotations

import asyncio

import pytest

from posthouse.model.limits import DAY_S, MILLISECOND_NS
from tests.relay.edge import Author
from tests.relay.locks.transports import LEASE_MS, LockRelay, granted, refused


async def test_acquire_grants_a_free_lock(relay: LockRelay) -> None:
    alice = await relay.node()
    grant = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))
    assert grant == {
        "resource": "db",
        "owner": alice.node,
        "token": 1,
        "lease_ms": LEASE_MS,
        "expires_at_ns": relay.clock.wall_ns() + LEASE_MS * MILLISECOND_NS,
    }


async def test_acquire_of_a_lock_held_by_another_names_the_holder_and_the_time_left(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))
    relay.clock.advance(2)
    status, value = await bob.ask("acquire", resource="db", lease_ms=LEASE_MS)
    assert (status, value["code"], value["holder"], value["remaining_ms"]) == (409, "held", alice.node, 3_000)


async def test_acquire_of_a_lock_held_by_oneself_is_refused(relay: LockRelay) -> None:
    alice = await relay.node()
    granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))
    assert refused(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS)) == (409, "held_by_self")
    waiting = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, wait_ms=60_000)
    assert refused(waiting) == (409, "held_by_self")


async def test_same_request_id_gets_the_same_answer_while_the_grant_is_active(relay: LockRelay) -> None:
    alice = await relay.node()
    first = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q1"))
    relay.clock.advance(4)
    assert granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q1")) == first
    waiting = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q1", wait_ms=60_000)
    assert granted(waiting) == first


async def test_same_request_id_is_spent_when_its_grant_is_over(relay: LockRelay) -> None:
    alice = await relay.node()
    token = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q1"))["token"]
    assert (await alice.ask("release", resource="db", token=token))[0] == 200
    again = {"resource": "db", "lease_ms": LEASE_MS, "request_id": "q1"}
    assert refused(await alice.ask("acquire", **again)) == (409, "request_spent")
    assert refused(await alice.ask("acquire", **again, wait_ms=60_000)) == (409, "request_spent")
    granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q2"))
    relay.clock.advance(LEASE_MS / 1000)
    assert refused(await alice.ask("acquire", **again | {"request_id": "q2"})) == (409, "request_spent")


async def test_request_id_with_other_parameters_is_refused(relay: LockRelay) -> None:
    alice = await relay.node()
    granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q1"))
    again = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS + 1, request_id="q1")
    assert refused(again) == (409, "request_reused")


async def test_request_id_is_kept_for_a_day_and_per_resource_and_owner(relay: LockRelay) -> None:
    author = Author(relay.clock)
    alice, bob = await relay.node(author), await relay.node()
    wanted = {"lease_ms": LEASE_MS, "request_id": "q1"}
    granted(await alice.ask("acquire", resource="a", **wanted))
    granted(await alice.ask("acquire", resource="b", **wanted))
    assert refused(await bob.ask("acquire", resource="a", **wanted)) == (409, "held")
    relay.clock.advance(DAY_S - 1)
    alice = await relay.node(author)  # tokens of HTTP are an hour old by now
    assert refused(await alice.ask("acquire", resource="a", **wanted)) == (409, "request_spent")
    relay.clock.advance(1)
    assert granted(await alice.ask("acquire", resource="a", **wanted))["token"] == 3


async def test_wait_that_times_out_names_the_holder(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))
    status, value = await bob.ask("acquire", resource="db", lease_ms=LEASE_MS, wait_ms=30)
    assert (status, value["code"], value["holder"]) == (409, "held", alice.node)


async def test_full_wait_queue_refuses_another_waiter(relay: LockRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob, carol = await relay.node(), await relay.node(), await relay.node()
    monkeypatch.setattr(relay.edge.locks._queues, "_max_per_lock", 1)
    token = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q1"))["token"]
    waiting = asyncio.create_task(bob.ask("acquire", resource="db", lease_ms=LEASE_MS, wait_ms=60_000))
    await relay.waiting(1)
    refusal = await carol.ask("acquire", resource="db", lease_ms=LEASE_MS, wait_ms=60_000)
    assert refused(refusal) == (429, "wait_queue_full")
    assert refused(await carol.ask("acquire", resource="db", lease_ms=LEASE_MS)) == (409, "held")
    repeat = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, request_id="q1", wait_ms=60_000)
    assert granted(repeat)["token"] == token
    await alice.ask("release", resource="db", token=token)
    assert granted(await waiting)["token"] == token + 1


async def test_renew_keeps_the_token_and_counts_the_lease_from_now(relay: LockRelay) -> None:
    alice = await relay.node()
    token = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))["token"]
    relay.clock.advance(4)
    renewed = granted(await alice.ask("renew", resource="db", token=token, lease_ms=7_000))
    assert (renewed["token"], renewed["lease_ms"]) == (token, 7_000)
    assert (await alice.ask("inspect", resource="db"))[1]["remaining_ms"] == 7_000


async def test_release_frees_the_lock(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    token = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))["token"]
    assert await alice.ask("release", resource="db", token=token) == (
        200,
        {"resource": "db", "owner": alice.node, "token": token},
    )
    assert granted(await bob.ask("acquire", resource="db", lease_ms=LEASE_MS))["token"] == token + 1


@pytest.mark.parametrize("op", ["renew", "release"])
async def test_only_the_holder_renews_and_releases(relay: LockRelay, op: str) -> None:
    alice, bob = await relay.node(), await relay.node()
    more = {"lease_ms": LEASE_MS} if op == "renew" else {}
    token = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))["token"]
    assert refused(await bob.ask(op, resource="db", token=token, **more)) == (409, "not_holder")
    assert refused(await alice.ask(op, resource="db", token=token + 1, **more)) == (409, "not_holder")
    assert (await alice.ask("release", resource="db", token=token))[0] == 200
    assert refused(await alice.ask(op, resource="db", token=token, **more)) == (409, "not_holder")


@pytest.mark.parametrize("op", ["renew", "release"])
async def test_old_token_of_the_same_holder_is_stale(relay: LockRelay, op: str) -> None:
    alice = await relay.node()
    more = {"lease_ms": LEASE_MS} if op == "renew" else {}
    old = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))["token"]
    relay.clock.advance(LEASE_MS / 1000)
    granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))
    assert refused(await alice.ask(op, resource="db", token=old, **more)) == (409, "stale_token")


@pytest.mark.parametrize("op", ["renew", "release"])
async def test_expired_lease_is_over_even_if_nobody_took_it(relay: LockRelay, op: str) -> None:
    alice = await relay.node()
    more = {"lease_ms": LEASE_MS} if op == "renew" else {}
    token = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))["token"]
    relay.clock.advance(LEASE_MS / 1000)
    assert refused(await alice.ask(op, resource="db", token=token, **more)) == (409, "lease_expired")


@pytest.mark.parametrize("op", ["renew", "release"])
async def test_resource_that_was_never_locked_is_unknown(relay: LockRelay, op: str) -> None:
    alice = await relay.node()
    more = {"lease_ms": LEASE_MS} if op == "renew" else {}
    assert refused(await alice.ask(op, resource="db", token=1, **more)) == (404, "unknown_resource")


@pytest.mark.parametrize("resource", ["x" * 513, "é" * 257])
async def test_resource_of_more_than_512_bytes_is_refused(relay: LockRelay, resource: str) -> None:
    alice = await relay.node()
    assert refused(await alice.ask("acquire", resource=resource, lease_ms=LEASE_MS)) == (400, "resource_invalid")
    assert refused(await alice.ask("renew", resource=resource, token=1, lease_ms=LEASE_MS)) == (400, "resource_invalid")
    assert refused(await alice.ask("release", resource=resource, token=1)) == (400, "resource_invalid")
    assert refused(await alice.ask("inspect", resource=resource)) == (400, "resource_invalid")


async def test_empty_resource_is_refused(relay: LockRelay) -> None:
    alice = await relay.node()
    assert refused(await alice.ask("acquire", resource="", lease_ms=LEASE_MS)) == (400, "resource_invalid")


@pytest.mark.parametrize("lease_ms", [999, 600_001, 0, -1])
async def test_lease_outside_of_a_second_and_ten_minutes_is_refused(relay: LockRelay, lease_ms: int) -> None:
    alice = await relay.node()
    assert refused(await alice.ask("acquire", resource="db", lease_ms=lease_ms)) == (400, "lease_invalid")
    assert refused(await alice.ask("renew", resource="db", token=1, lease_ms=lease_ms)) == (400, "lease_invalid")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"wait_ms": -1}, "wait_invalid"),
        ({"wait_ms": 600_001}, "wait_invalid"),
        ({"request_id": ""}, "request_id_invalid"),
        ({"request_id": "x" * 256}, "request_id_invalid"),
        ({"lease_ms": "5000"}, "body_invalid"),
        ({"lease_ms": 5000.5}, "body_invalid"),
        ({"unheard_of": 1}, "body_invalid"),
        ({"mesh": "no/mesh"}, "body_invalid"),
    ],
)
async def test_malformed_acquire_is_refused(relay: LockRelay, change: dict[str, object], code: str) -> None:
    alice = await relay.node()
    assert refused(await alice.ask("acquire", **{"resource": "db", "lease_ms": LEASE_MS} | change)) == (400, code)


async def test_inspect_returns_holder_and_time_left_and_the_token_to_the_holders_node(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    never = {"resource": "db", "held": False, "owner": None, "token": 0, "remaining_ms": 0}
    assert await bob.ask("inspect", resource="db") == (200, never)
    token = granted(await alice.ask("acquire", resource="db", lease_ms=LEASE_MS))["token"]
    relay.clock.advance(1)
    held = {"resource": "db", "held": True, "owner": alice.node, "token": token, "remaining_ms": 4_000}
    assert await alice.ask("inspect", resource="db") == (200, held)
    assert await bob.ask("inspect", resource="db") == (200, held | {"token": 0})
    relay.clock.advance(4)
    free = {"resource": "db", "held": False, "owner": None, "token": token, "remaining_ms": 0}
    assert await alice.ask("inspect", resource="db") == (200, free)
    assert await bob.ask("inspect", resource="db") == (200, free | {"token": 0})
    assert [lock["token"] for lock in (await alice.ask("list"))[1]["locks"]] == [token]
    assert [lock["token"] for lock in (await bob.ask("list"))[1]["locks"]] == [0]


async def test_list_shows_every_lock_that_one_may_read(relay: LockRelay) -> None:
    alice = await relay.node()
    for resource in ("b", "a"):
        granted(await alice.ask("acquire", resource=resource, lease_ms=LEASE_MS))
    await alice.ask("release", resource="b", token=1)
    status, value = await alice.ask("list")
    assert status == 200 and value["cursor"] is None
    shown = [(lock["mesh"], lock["resource"], lock["held"], lock["owner"]) for lock in value["locks"]]
    assert shown == [("main", "a", True, alice.node), ("main", "b", False, None)]
