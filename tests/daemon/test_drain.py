"""From the outbox to the relay: in order per destination, destinations independent, given up only for a reason."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from posthouse.client import Published
from posthouse.daemon.drain import backoff_s, is_permanent
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.relay.messages.settings import DeliverySettings
from tests.client.house import House, open_house
from tests.client.waiting import until
from tests.daemon.hosts import Host, eventually, host_at, make_host, restart, running

READER = NodeKey(b"r" * 32).node


async def test_messages_of_one_destination_arrive_in_the_order_they_were_accepted(alice: Host, bob: Host) -> None:
    expected = [f"m{number}" for number in range(200)]
    for body in expected:
        assert (await alice.send(bob.node, body)).status == 202
    assert await bob.until_bodies(200) == expected


async def test_lone_message_takes_three_commits(alice: Host) -> None:
    """One accepts it, one claims it, one settles it and finds that nothing else waits."""
    await alice.send(READER, "first", client_message_id="first")
    await alice.until_status("first", "done")
    await until(lambda: not alice.mesh.drain._tasks)
    before = alice.mesh.outbox.store.statistics()["batches"]
    await alice.send(READER, "lone", client_message_id="lone")
    await alice.until_status("lone", "done")
    await until(lambda: not alice.mesh.drain._tasks)
    assert alice.mesh.outbox.store.statistics()["batches"] - before == 3


async def test_rows_accepted_while_the_relay_is_away_are_sent_when_it_is_back(house: House, alice: Host) -> None:
    await house.down()
    await until(lambda: not alice.mesh.uplink.is_up)
    answers = [await alice.send(READER, f"m{number}", client_message_id=f"c{number}") for number in range(100)]
    assert {answer.status for answer in answers} == {202}
    health = await alice.get("/v1/health")
    assert (health["connected"], health["queue_depth"]) == (False, 100)
    await house.up()
    await alice.until_status("c99", "done")
    rows = [await alice.row(f"c{number}") for number in range(100)]
    assert {row["status"] for row in rows} == {"done"}
    seqs = [row["history_id"] for row in rows]
    assert seqs == sorted(seqs)


async def test_a_daemon_starts_and_accepts_without_any_relay(tmp_path: Path) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9")
    async with running(host):
        assert (await host.send(READER, "hello")).status == 202
        assert (await host.get("/v1/health"))["queue_depth"] == 1


async def test_rows_in_flight_when_a_daemon_ended_are_sent_after_its_restart(house: House, alice: Host) -> None:
    reached = asyncio.Event()

    async def never(_events: Sequence[Event]) -> list[Published | PosthouseError]:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    alice.mesh.drain._submit = never
    await alice.send(READER, "hello", client_message_id="c")
    await reached.wait()
    assert (await alice.row("c"))["status"] == "inflight"
    await restart(alice)
    row = await alice.until_status("c", "done")
    assert row["attempts"] == 2
    assert await alice.mesh.uplink.client.count({"kinds": [1000]}) == 1


async def test_a_frame_the_relay_stored_but_never_answered_is_a_duplicate_there(house: House, alice: Host) -> None:
    submit = alice.mesh.drain._submit
    lost: list[int] = []

    async def lose_answers(events: Sequence[Event]) -> list[Published | PosthouseError]:
        answers = await submit(events)
        if lost:
            return answers
        lost.append(len(answers))
        return [error("answer_missing", seconds=1, id="x")] * len(answers)

    alice.mesh.drain._submit = lose_answers
    await alice.send(READER, "hello", client_message_id="c")
    row = await alice.until_status("c", "done")
    assert row["attempts"] == 2
    assert await alice.mesh.uplink.client.count({"kinds": [1000]}) == 1


async def test_a_full_queue_delays_only_its_own_destination(tmp_path: Path) -> None:
    async with (
        open_house(tmp_path, deliveries=DeliverySettings(queue_max=2)) as house,
        host_at(house, "alice") as alice,
        host_at(house, "bob") as bob,
    ):
        for number in range(5):
            await alice.send(READER, f"stuck {number}", client_message_id=f"s{number}")
        for number in range(20):
            await alice.send(bob.node, f"free {number}")
        assert await bob.until_bodies(20) == [f"free {number}" for number in range(20)]
        await alice.until_status("s1", "done")
        row = await eventually(lambda: alice.row("s2"), lambda row: row["last_error"] is not None)
        assert row["last_error"].startswith("queue_full")
        assert row["status"] in ("pending", "inflight")
        later = await alice.row("s4")
        assert later["status"] in ("pending", "inflight")


async def test_an_unreachable_destination_waits_longer_each_time(house: House, alice: Host) -> None:
    frames: list[list[str]] = []

    async def refuse(events: Sequence[Event]) -> list[Published | PosthouseError]:
        frames.append([event.id for event in events])
        return [error("queue_full", recipient=READER)] * len(events)

    alice.mesh.drain._submit = refuse
    await alice.send(READER, "hello", client_message_id="c")
    row = await eventually(lambda: alice.row("c"), lambda row: row["attempts"] == 2 and row["next_attempt_at"])
    assert row["status"] == "pending"
    assert frames[0] == frames[1]


async def test_at_most_64_rows_travel_in_one_frame_and_one_frame_at_a_time(house: House, alice: Host) -> None:
    submit = alice.mesh.drain._submit
    sizes: list[int] = []
    running_now = 0

    async def watch(events: Sequence[Event]) -> list[Published | PosthouseError]:
        nonlocal running_now
        running_now += 1
        assert running_now == 1
        sizes.append(len(events))
        try:
            return await submit(events)
        finally:
            running_now -= 1

    await house.down()
    await until(lambda: not alice.mesh.uplink.may_send)
    for number in range(150):
        await alice.send(READER, f"m{number}", client_message_id=f"c{number}")
    alice.mesh.drain._submit = watch
    await house.up()
    await alice.until_status("c149", "done")
    assert sum(sizes) == 150
    assert max(sizes) == 64


async def test_a_permanent_refusal_makes_a_row_dead_and_publishes_an_event(house: House, alice: Host) -> None:
    assert (await alice.post("/v1/topic/create", topic="gone")).status == 201
    listener = alice.daemon.events.subscribe(100)
    admin = house.client(NodeKey(b"a" * 32))
    await admin.meshes.remove_topic("main", "gone")
    answer = await alice.send("#gone", "hello", client_message_id="c")
    assert answer.status == 202
    row = await alice.until_status("c", "dead")
    assert row["last_error"].startswith("topic_unknown")
    events = [each for each in await listener.next_batch(10) if each.event == "outbox_dead"]
    assert events[0].data["client_message_id"] == "c"
    assert events[0].data["reason"] == "topic_unknown"


async def test_rows_behind_a_dead_row_still_arrive(house: House, alice: Host) -> None:
    submit = alice.mesh.drain._submit

    async def refuse_first(events: Sequence[Event]) -> list[Published | PosthouseError]:
        bad = [event for event in events if event.value("c") == "c0"]
        if bad:
            return [error("message_malformed", reason="x"), *([error("earlier_refused")] * (len(events) - 1))]
        return await submit(events)

    await house.down()
    await until(lambda: not alice.mesh.uplink.may_send)
    for number in range(3):
        await alice.send(READER, f"m{number}", client_message_id=f"c{number}")
    alice.mesh.drain._submit = refuse_first
    await house.up()
    await alice.until_status("c2", "done")
    assert [(await alice.row(f"c{number}"))["status"] for number in range(3)] == ["dead", "done", "done"]


# age


async def test_a_row_that_is_too_old_is_dead_and_never_sent(tmp_path: Path, house: House) -> None:
    clock = FakeClock()
    host = make_host(tmp_path, "http://127.0.0.1:9", clock=clock)
    async with running(host):
        await host.send(READER, "old", client_message_id="old")
        clock.advance(100 * 3600)
        await host.send(READER, "young", client_message_id="young")
        clock.advance(68 * 3600 + 1)
        await host.mesh.drain.expire()
        assert (await host.row("old"))["status"] == "dead"
        assert "max_age_exceeded" in (await host.row("old"))["last_error"]
        assert (await host.row("young"))["status"] == "pending"
        assert (await host.get("/v1/health"))["queue_depth"] == 1


async def test_a_claimed_row_that_is_too_old_is_given_up_before_it_is_sent(house: House, alice: Host) -> None:
    sent: list[Any] = []

    async def watch(events: Sequence[Event]) -> list[Published | PosthouseError]:
        sent.extend(events)
        return []

    alice.mesh.drain._submit = watch
    alice.mesh.drain.max_age_h = -1
    await alice.send(READER, "old", client_message_id="old")
    await alice.until_status("old", "dead")
    assert sent == []


# rules


@pytest.mark.parametrize(
    ("failure", "is_for_good"),
    [
        (error("topic_unknown", topic="t", mesh="m"), True),
        (error("message_malformed", reason="x"), True),
        (error("body_too_large", bytes=1, limit=1), True),
        (error("idempotency_key_reused", client_message_id="c", conflict="x"), True),
        (error("queue_full", recipient="x"), False),
        (error("earlier_refused"), False),
        (error("rate_limited", key="k", rate=1), False),
        (error("relay_unreachable", relay="r", reason="x"), False),
        (error("answer_missing", seconds=1, id="x"), False),
        (error("store_full", reason="x"), False),
        (error("client_closed"), False),
        (error("answer_invalid", relay="r", reason="x"), False),
        (error("authentication_required"), False),
        (error("internal", reason="x"), False),
        (error("request_too_slow", seconds=1), False),
    ],
)
def test_which_refusals_are_for_good(failure: PosthouseError, is_for_good: bool) -> None:
    assert is_permanent(failure, is_admitted=True) is is_for_good


def test_missing_rights_are_for_good_only_once_the_relay_let_the_node_in() -> None:
    failure = error("right_missing", node="n", mesh="m", right="write")
    assert is_permanent(failure, is_admitted=True)
    assert not is_permanent(failure, is_admitted=False)


def test_rows_of_a_removed_member_wait_because_it_may_be_let_in_again() -> None:
    assert not is_permanent(error("not_member", node="n", mesh="m"), is_admitted=True)


def test_waits_double_from_half_a_second_to_thirty_with_a_quarter_of_jitter() -> None:
    failure, chance = error("queue_full", recipient="x"), random.Random(7)
    for failures, base in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (6, 16.0), (7, 30.0), (50, 30.0), (10_000, 30.0)):
        waits = [backoff_s(failures, failure, chance) for _ in range(200)]
        assert 0.75 * base <= min(waits) < 0.8 * base
        assert 1.2 * base < max(waits) <= 1.25 * base


def test_a_relay_that_names_a_longer_wait_gets_it() -> None:
    failure = error("rate_limited", key="k", rate=1, retry_after_s=9)
    assert backoff_s(1, failure, random.Random(1)) == 9


# the store


async def test_done_rows_lose_their_event_after_thirty_days_and_keep_their_id(tmp_path: Path, house: House) -> None:
    async with host_at(house, "alice") as host:
        await host.send(READER, "hello", client_message_id="c")
        row = await host.until_status("c", "done")
        assert await host.mesh.outbox.strip_done(host.daemon.clock.wall_ns() + 1) == 1
        depth = await host.mesh.outbox.depth()
        assert depth.bytes == 0
        again = await host.send(READER, "hello", client_message_id="c")
        assert (again.status, again["broker_message_id"]) == (200, row["broker_message_id"])
        assert (await host.send(READER, "other", client_message_id="c")).status == 409


async def test_journal_records_the_states_of_a_row_without_its_body(house: House, alice: Host) -> None:
    secret = "a body nobody should find"
    await alice.send(READER, secret, client_message_id="c")
    row = await alice.until_status("c", "done")
    records = await alice.mesh.outbox.store.pool.run(
        lambda db: list(db.execute("SELECT type, ref, body FROM journal ORDER BY seq"))
    )
    kinds = [record[0] for record in records if record[0].startswith("outbox.")]
    assert kinds == ["outbox.queued", "outbox.inflight", "outbox.done"]
    assert {record[1] for record in records if record[0].startswith("outbox.")} == {row["id"]}
    assert secret not in str(records)


async def test_an_outbox_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    outbox = Outbox(tmp_path / "outbox.db", "main", clock)
    outbox.store.writer.run_blocking(
        lambda tx: tx.db.execute("UPDATE schema_versions SET version = 99 WHERE component = 'outbox'").fetchall()
    )
    outbox.close()
    with pytest.raises(PosthouseError) as refused:
        Outbox(tmp_path / "outbox.db", "main", clock)
    assert refused.value.code == "store_schema_newer"
