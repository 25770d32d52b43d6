"""Messages while the clock of the machine is set forward and back; real processes on a stepped clock."""

from __future__ import annotations

from pathlib import Path

from tests.relay.messages.town import some, town

HOUR_S = 3_600
TTL_S = 1_000


async def test_clock_steps_neither_lose_nor_reorder_nor_disconnect(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        alice, bob = await place.client(), await place.client()
        for number, wall_s in enumerate([0, HOUR_S, -HOUR_S, 24 * HOUR_S, -24 * HOUR_S, 0]):
            place.step_clock(wall_s)
            await alice.send(bob.key.node, f"stored-{number}")
        mailbox = await bob.receive()
        stored = await some(mailbox, 6)
        for number, wall_s in enumerate([HOUR_S, -HOUR_S, 0]):
            place.step_clock(wall_s)
            await alice.send(bob.key.node, f"live-{number}")
        live = await some(mailbox, 3)
        assert [each.body for each in stored] == [f"stored-{number}" for number in range(6)]
        assert [each.body for each in live] == [f"live-{number}" for number in range(3)]
        assert [each.was_stored for each in live] == [False] * 3
        assert bob.statistics()["connections"] == 1


async def test_message_older_than_the_ttl_is_not_delivered_and_its_state_says_so(tmp_path: Path) -> None:
    async with town(tmp_path, "--queue-ttl-s", str(TTL_S)) as place:
        alice, bob = await place.client(), await place.client()
        old = await alice.send(bob.key.node, "old")
        place.step_clock(TTL_S / 2)
        young = await alice.send(bob.key.node, "young")
        place.step_clock(TTL_S + 60)
        late = await alice.send(bob.key.node, "late")
        mailbox = await bob.receive()
        assert [each.id for each in await some(mailbox, 2)] == [young.id, late.id]
        states = [(await alice.message(each.id)).deliveries[0].state for each in (old, young, late)]
        assert states == ["expired", "confirmed", "confirmed"]


async def test_jump_of_boot_time_closes_only_who_makes_no_progress(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        alice, bob, idle = await place.client(), await place.client(), await place.client()
        await alice.send(bob.key.node, "unconfirmed")
        mailbox, idle_box = await bob.receive(), await idle.receive()
        (first,) = await mailbox.take()
        place.step_clock(boot_s=31)
        (again,) = await mailbox.take()
        assert (again.id, again.attempt) == (first.id, 2)
        await mailbox.confirm(again)
        await alice.send(idle.key.node, "hello")
        assert [each.was_stored for each in await some(idle_box, 1)] == [False]
        assert idle.statistics()["connections"] == 1
