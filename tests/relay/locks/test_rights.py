"""Rights to lock: authentication, membership and access rows."""

from __future__ import annotations

import asyncio

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.model.node import Role
from posthouse.relay.wire.lock_operations import ListLocks
from posthouse.relay.wire.mesh_rows import AccessRow, Verdict
from tests.relay.edge import Author
from tests.relay.locks.transports import LEASE_MS, LockRelay, granted, refused


async def test_lock_operations_need_authentication(relay: LockRelay) -> None:
    for path, body in (
        ("acquire", {"resource": "a", "lease_ms": LEASE_MS}),
        ("release", {"resource": "a", "token": 1}),
    ):
        assert (await relay.edge.post(f"/v1/locks/{path}", body)).status == 401
    assert (await relay.edge.get("/v1/locks")).status == 401
    assert (await relay.edge.get("/v1/locks/a")).status == 401
    async with relay.edge.stream() as stream:
        await stream.send("LOCK", "r1", "acquire", {"resource": "a", "lease_ms": LEASE_MS})
        req, problem = await stream.expect("LOCKED")
        assert (req, problem["status"], problem["code"]) == ("r1", 401, "authentication_required")


async def test_every_grant_of_any_lock_in_any_mesh_has_a_higher_token(relay: LockRelay) -> None:
    alice = await relay.node()
    await relay.edge.server.context.engine.administration.create_mesh(alice.node, "lab")
    assert granted(await alice.ask("acquire", resource="a", lease_ms=LEASE_MS))["token"] == 1
    await alice.ask("release", resource="a", token=1)
    assert granted(await alice.ask("acquire", resource="a", lease_ms=LEASE_MS))["token"] == 2
    assert granted(await alice.ask("acquire", resource="a", mesh="lab", lease_ms=LEASE_MS))["token"] == 3
    assert granted(await alice.ask("acquire", resource="b", lease_ms=LEASE_MS))["token"] == 4


async def test_roles_and_access_rows_decide_who_may_lock(relay: LockRelay) -> None:
    administration = relay.edge.server.context.engine.administration
    author = Author(relay.clock)
    admin, reader, member, stranger = await relay.node(author), *[await relay.node() for _ in range(3)]
    await administration.create_mesh(admin.node, "lab", is_open=False)
    await administration.save_member(admin.node, "lab", reader.node, "reader", Role.READER)
    await administration.save_member(admin.node, "lab", member.node, "member", Role.MEMBER)
    wanted = {"resource": "a", "mesh": "lab", "lease_ms": LEASE_MS}
    assert refused(await stranger.ask("acquire", **wanted)) == (403, "not_member")
    assert refused(await stranger.ask("inspect", resource="a", mesh="lab")) == (403, "not_member")
    assert refused(await reader.ask("acquire", **wanted)) == (403, "right_missing")
    token = granted(await member.ask("acquire", **wanted))["token"]
    assert (await reader.ask("inspect", resource="a", mesh="lab"))[1]["owner"] == member.node
    await administration.save_access(admin.node, AccessRow("lab", member.node, lock=Verdict.DENY))
    assert refused(await member.ask("renew", **wanted, token=token)) == (403, "right_missing")
    assert (await member.ask("release", resource="a", mesh="lab", token=token))[0] == 200  # a holder may always release
    assert (await stranger.ask("list"))[1]["locks"] == []
    assert refused(await admin.ask("acquire", **wanted | {"mesh": "nowhere"})) == (403, "not_member")


async def test_outsider_learns_neither_which_locks_nor_which_meshes_exist(relay: LockRelay) -> None:
    administration = relay.edge.server.context.engine.administration
    admin, member, stranger = [await relay.node() for _ in range(3)]
    await administration.create_mesh(admin.node, "lab", is_open=False)
    await administration.save_member(admin.node, "lab", member.node, "member", Role.MEMBER)
    token = granted(await member.ask("acquire", resource="held", mesh="lab", lease_ms=LEASE_MS))["token"]
    operations = {
        "acquire": {"lease_ms": LEASE_MS},
        "renew": {"lease_ms": LEASE_MS, "token": token},
        "release": {"token": token},
        "inspect": {},
    }
    for operation, given in operations.items():
        answers = [
            await stranger.ask(operation, resource=resource, mesh=mesh, **given)
            for mesh, resource in (("lab", "held"), ("lab", "free"), ("nowhere", "held"))
        ]
        details = {str(value["detail"]).replace("nowhere", "lab") for _, value in answers}
        assert [refused(answer) for answer in answers] == [(403, "not_member")] * 3, operation
        assert len(details) == 1, operation
    for mesh in ("lab", "nowhere"):
        with pytest.raises(PosthouseError) as outside:
            await relay.edge.server.context.engine.locks.list(stranger.node, ListLocks(mesh, None, 10))
        assert outside.value.code == "not_member"
    await administration.remove_member(admin.node, "lab", member.node)
    assert (await member.ask("release", resource="held", mesh="lab", token=token))[0] == 200, "a holder may release"


async def test_node_above_its_rate_gets_the_time_to_retry_after(relay: LockRelay) -> None:
    alice = await relay.node()
    locks = relay.edge.locks
    while locks._buckets.take(alice.node, relay.clock.boot_ns()) == 0:
        pass
    status, value = await alice.ask("acquire", resource="a", lease_ms=LEASE_MS)
    assert (status, value["code"]) == (429, "locks_too_fast") and 0 < value["retry_after_s"] < 1
    relay.clock.advance(1)
    granted(await alice.ask("acquire", resource="a", lease_ms=LEASE_MS))


async def test_malformed_lock_commands_are_refused_with_the_reason(relay: LockRelay) -> None:
    async with relay.edge.stream(Author(relay.clock)) as stream:
        await stream.send("LOCK", "r1", "acquire")
        assert await stream.notice() == "frame_malformed"
        await stream.send("LOCK", 7, "acquire", {})
        assert await stream.notice() == "frame_malformed"
        await stream.send("LOCK", "r2", "grab", {})
        assert (await stream.expect("LOCKED"))[1]["code"] == "operation_unknown"
        await stream.send("LOCK", "r3", "acquire", [])
        assert (await stream.expect("LOCKED"))[1]["code"] == "body_invalid"


async def test_metrics_count_contention_waits_and_take_overs(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    granted(await alice.ask("acquire", resource="a", lease_ms=LEASE_MS))
    refused(await bob.ask("acquire", resource="a", lease_ms=LEASE_MS))
    waiting = asyncio.create_task(bob.ask("acquire", resource="a", lease_ms=LEASE_MS, wait_ms=60_000))
    await relay.waiting(1)
    text = (await relay.edge.get("/metrics", await relay.edge.token(relay.edge.admin))).body.decode()
    assert "posthouse_relay_lock_waiters 1.0" in text
    relay.clock.advance(LEASE_MS / 1000)
    granted(await waiting)
    text = (await relay.edge.get("/metrics", await relay.edge.token(relay.edge.admin))).body.decode()
    lines = set(text.splitlines())
    assert 'posthouse_relay_lock_operations_total{operation="acquire",outcome="done"} 2.0' in lines
    assert 'posthouse_relay_lock_operations_total{operation="acquire",outcome="held"} 1.0' in lines
    assert "posthouse_relay_lock_take_overs_total 1.0" in lines
    assert "posthouse_relay_lock_wait_seconds_count 1.0" in lines
    assert "posthouse_relay_lock_wait_seconds_sum 5.0" in lines
