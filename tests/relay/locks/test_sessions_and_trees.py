"""Sessions, trees, sharing, several names at once, breaking and watching: what clients see on both transports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from posthouse.model.node import Role
from tests.relay.edge import Author
from tests.relay.locks.desk import PATIENCE_S, Desk, code_of, node, token_of
from tests.relay.locks.transports import LEASE_MS, LockRelay, refused

ALICE, BOB, CAROL, ADMIN = node(1), node(2), node(3), node(99)


async def ask(client: Any, resource: str, **more: Any) -> dict[str, Any]:
    status, value = await client.ask("acquire", resource=resource, lease_ms=LEASE_MS, **more)
    assert status == 200, value
    answer: dict[str, Any] = value
    return answer


async def test_session_waits_for_another_session_of_its_node(relay: LockRelay) -> None:
    author = Author(relay.clock)
    one, two = await relay.node(author), await relay.node(author)
    first = await ask(one, "db", session="one")
    assert first["session"] == "one"
    same = await one.ask("acquire", resource="db", lease_ms=LEASE_MS, session="one", wait_ms=60_000)
    assert refused(same) == (409, "held_by_self") and "token" not in same[1]
    waiting = asyncio.create_task(two.ask("acquire", resource="db", lease_ms=LEASE_MS, session="two", wait_ms=60_000))
    await relay.waiting(1)
    assert refused(await two.ask("release", resource="db", token=first["token"], session="two")) == (409, "not_holder")
    assert (await two.ask("release", resource="db", token=first["token"]))[0] == 200  # node and token are enough
    assert (await waiting)[1]["session"] == "two"


async def test_request_id_is_kept_per_session(relay: LockRelay) -> None:
    alice = await relay.node()
    first = await ask(alice, "db", session="one", request_id="q")
    assert await ask(alice, "db", session="one", request_id="q") == first
    other = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, session="two", request_id="q")
    assert refused(other) == (409, "held")
    shared = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, session="one", request_id="q", mode="shared")
    assert refused(shared) == (409, "request_reused")


async def test_tree_excludes_what_is_below_it_and_is_excluded_by_it(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    tree = await ask(alice, "src", tree=True)
    status, refusal = await bob.ask("acquire", resource="src/a/b.py", lease_ms=LEASE_MS)
    assert (status, refusal["code"], refusal["blocked_by"], refusal["holder"]) == (409, "held", "src", alice.node)
    await ask(bob, "src2")
    assert (await bob.ask("inspect", resource="src/a/b.py"))[1]["holders"][0]["tree"] is True
    await alice.ask("release", resource="src", token=tree["token"])
    below = await ask(bob, "src/a/b.py")
    assert below["token"] > tree["token"]
    assert refused(await alice.ask("acquire", resource="src", lease_ms=LEASE_MS, tree=True)) == (409, "held")
    await ask(alice, "src")  # a plain lock covers its own name only


async def test_writer_is_not_starved_by_readers(relay: LockRelay) -> None:
    alice, bob, carol = [await relay.node() for _ in range(3)]
    one, two = await ask(alice, "db", mode="shared"), await ask(bob, "db", mode="shared")
    writer = asyncio.create_task(carol.ask("acquire", resource="db", lease_ms=LEASE_MS, wait_ms=60_000))
    await relay.waiting(1)
    late = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, mode="shared", session="late")
    assert refused(late) == (409, "held") and late[1]["is_waiting"] is True
    await alice.ask("release", resource="db", token=one["token"])
    await bob.ask("release", resource="db", token=two["token"])
    assert (await writer)[0] == 200


async def test_session_that_shares_a_lock_cannot_wait_for_it_alone(relay: LockRelay) -> None:
    alice = await relay.node()
    await ask(alice, "db", mode="shared", session="one")
    upgrade = await alice.ask("acquire", resource="db", lease_ms=LEASE_MS, session="one", wait_ms=60_000)
    assert refused(upgrade) == (409, "held_by_self")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_overlapping_requests_of_one_session_are_granted_in_the_order_they_came(desk: Desk, mode: str) -> None:
    held = {name: await desk.granted(BOB, name) for name in ("a/b", "c")}
    first = desk.acquire(ALICE, "a", tree=True, also=("c",), session="s", mode=mode, wait_ms=60_000)
    second = desk.acquire(ALICE, "a/b", session="s", mode=mode, wait_ms=60_000)
    await desk.release(BOB, held["a/b"], "a/b")
    refusal = await desk.acquire(ALICE, "a/b", session="s", mode=mode)
    assert code_of(refusal) == "held"
    assert not first.done() and not second.done()
    await desk.release(BOB, held["c"], "c")
    assert token_of(await first) > held["c"]
    assert code_of(await second) == "held_by_self"


async def test_several_names_are_granted_all_or_none_and_renewed_and_released_together(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    await ask(bob, "b")
    assert refused(await alice.ask("acquire", resource="a", lease_ms=LEASE_MS, also=["b", "c"])) == (409, "held")
    assert (await bob.ask("inspect", resource="a"))[1]["held"] is False
    names = [f"n{number}" for number in range(63)]
    grant = await ask(alice, "a", also=names)
    assert grant["also"] == names
    token = grant["token"]
    assert (await alice.ask("renew", resource="a", token=token, lease_ms=LEASE_MS, also=names))[0] == 200
    assert refused(await bob.ask("acquire", resource="n62", lease_ms=LEASE_MS)) == (409, "held")
    assert (await alice.ask("release", resource="a", token=token, also=names))[0] == 200
    await ask(bob, "n62")
    too_many = await alice.ask("acquire", resource="a", lease_ms=LEASE_MS, also=[*names, "x"])
    assert refused(too_many) == (400, "resource_invalid")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"tree": "yes"}, "body_invalid"),
        ({"mode": "mine"}, "body_invalid"),
        ({"session": "a\n"}, "session_invalid"),
        ({"tree": True, "resource": "/".join("x" * 33)}, "resource_invalid"),
        ({"also": ["db"]}, "resource_invalid"),
    ],
)
async def test_wrong_fields_are_refused_and_lock_nothing(relay: LockRelay, given: dict[str, Any], code: str) -> None:
    alice = await relay.node()
    asked = {"resource": "db", "lease_ms": LEASE_MS} | given
    assert refused(await alice.ask("acquire", **asked)) == (400, code)
    assert (await alice.ask("list"))[1]["locks"] == []


async def test_admin_breaks_a_lock_and_the_next_waiter_gets_it(desk: Desk) -> None:
    held = await desk.granted(ALICE)
    waiting = desk.acquire(BOB, wait_ms=60_000)
    await desk.inspect()
    assert code_of(await desk.break_lock(BOB)) == "right_missing"
    broken = await desk.break_lock(ADMIN)
    assert [(each.owner, each.token) for each in broken.broken] == [(ALICE, held)]
    assert token_of(await waiting) > held
    assert code_of(await desk.renew(ALICE, held)) == "not_holder"
    (record,) = await desk.core.store.journal(0, 100, ["lock.broken"])
    assert (record.actor, record.ref, record.decoded_body()["owner"]) == (ADMIN, "r", ALICE)
    assert code_of(await desk.break_lock(ADMIN, "free")) == "not_held"


async def test_admin_breaks_any_one_of_many_shared_leases_by_its_token(desk: Desk) -> None:
    tokens = {node(each): await desk.granted(node(each), mode="shared") for each in range(1, 71)}
    for owner, token in tokens.items():
        broken = await desk.break_lock(ADMIN, token=token)
        assert [each.owner for each in broken.broken] == [owner]
    assert not (await desk.inspect()).held


async def test_inspect_finds_the_active_lease_among_many_that_are_over(desk: Desk) -> None:
    tokens = {node(each): await desk.granted(node(each), mode="shared") for each in range(1, 71)}
    last = max(tokens)
    await desk.renew(last, tokens[last], lease_ms=60_000)
    desk.clock.advance(10)
    state = await desk.inspect()
    assert (state.held, state.owner, len(state.holders)) == (True, last, 1)


async def test_removed_member_stops_waiting_at_once(desk: Desk) -> None:
    administration = desk.core.administration
    await administration.save_member(ADMIN, "main", BOB, "bob", Role.MEMBER)
    await administration.set_open(ADMIN, "main", is_open=False)
    held = await desk.granted(ADMIN)
    waiting = desk.acquire(BOB, wait_ms=600_000)
    await desk.inspect()
    await administration.remove_member(ADMIN, "main", BOB)
    async with asyncio.timeout(PATIENCE_S):
        assert code_of(await waiting) == "not_member"
    assert desk.locks.waiters == 0
    await desk.release(ADMIN, held)
    assert not (await desk.inspect()).held


async def test_waiters_behind_one_that_leaves_are_served(desk: Desk) -> None:
    await desk.granted(ALICE, mode="shared")
    is_gone = False
    writer = desk.acquire(BOB, wait_ms=600_000, is_gone=lambda: is_gone)
    await desk.inspect()
    reader = desk.acquire(CAROL, wait_ms=600_000, mode="shared")
    await desk.inspect()
    assert not reader.done() and not writer.done()
    is_gone = True
    async with asyncio.timeout(PATIENCE_S):
        assert token_of(await reader)
    assert writer.cancelled(), "nobody is left to take an answer"


@pytest.mark.parametrize("relay", ["stream"], indirect=True)
async def test_watch_shows_a_lock_now_and_after_each_change(relay: LockRelay) -> None:
    alice = await relay.node()
    async with relay.edge.stream(Author(relay.clock)) as watcher:

        async def shown() -> tuple[bool, str | None]:
            async with asyncio.timeout(PATIENCE_S):
                verb, req, state = await watcher.receive()
            assert (verb, req) == ("LOCKED", "w")
            return state["held"], state["owner"]

        await watcher.send("LOCK", "w", "watch", {"resource": "src/a"})
        assert await shown() == (False, None)
        grant = await ask(alice, "src/a")
        assert await shown() == (True, alice.node)
        await alice.ask("renew", resource="src/a", token=grant["token"], lease_ms=LEASE_MS)  # shows nothing new
        await alice.ask("release", resource="src/a", token=grant["token"])
        assert await shown() == (False, None)
        await ask(alice, "src", tree=True)
        assert await shown() == (True, alice.node)
        relay.clock.advance(LEASE_MS / 1000)
        assert await shown() == (False, None)
        await watcher.send("LOCK", "u", "unwatch", {"resource": "src/a"})
        assert await watcher.receive() == ["LOCKED", "u", {"resource": "src/a", "mesh": "main"}]
        assert len(relay.edge.locks.watches) == 0


@pytest.mark.parametrize("relay", ["stream"], indirect=True)
async def test_frames_of_clients_without_sessions_are_answered_as_ever(relay: LockRelay) -> None:
    author = Author(relay.clock)
    async with relay.edge.stream(author) as stream:

        async def locked(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
            await stream.send("LOCK", "1", op, arguments)
            verb, req, value = await stream.receive()
            assert (verb, req) == ("LOCKED", "1")
            answer: dict[str, Any] = value
            return answer

        grant = await locked("acquire", {"resource": "db", "lease_ms": LEASE_MS, "request_id": "q", "wait_ms": 10})
        assert set(grant) == {"resource", "owner", "token", "lease_ms", "expires_at_ns"}
        assert set(await locked("inspect", {"resource": "db"})) == {
            *("resource", "held", "owner", "token", "remaining_ms")
        }
        renewed = await locked("renew", {"resource": "db", "token": grant["token"], "lease_ms": LEASE_MS})
        assert renewed["token"] == grant["token"]
        freed = await locked("release", {"resource": "db", "token": grant["token"], "mesh": "main"})
        assert freed == {"resource": "db", "owner": author.node, "token": grant["token"]}
