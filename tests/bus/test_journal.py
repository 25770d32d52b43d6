"""The journal of the bus: one record for each fact, gap-free, in commit order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from posthouse import Bus
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.journal.verify import verify_store
from posthouse.model.budget import GivenBudget
from posthouse.sqlite.connection import open_reader
from tests.bus.house import House
from tests.bus.limits import reliability, settled
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually


def records(root: Path) -> list[Record]:
    """Every record of a bus, read by another connection as the pipeline would."""
    db = open_reader(root / "bus.db")
    try:
        return read_after(db, 0, 100_000)
    finally:
        db.close()


def of_type(root: Path, name: str) -> list[Record]:
    return [record for record in records(root) if record.type == name]


async def test_each_published_message_has_exactly_one_record_with_the_whole_envelope(house: House, bus: Bus) -> None:
    for subject in ("a.b", "a.c"):
        await bus.register_endpoint(subject)
    await bus.publish("a.*", {"n": 1}, from_="x", reply_to="x.in")
    published = of_type(house.root, "bus.published")
    assert len(published) == 2
    stored = {subject: house.mailbox(subject).read("new")[0] for subject in ("a.b", "a.c")}
    for record in published:
        envelope = record.decoded_body()["envelope"]
        assert envelope == stored[envelope["subject"]]
        assert record.actor == "x"
        assert record.ref == envelope["id"]


async def test_handled_failed_and_dead_messages_are_recorded(house: House) -> None:
    bus = await house.bus(reliability=reliability())
    for subject in ("a.good", "a.bad"):
        await bus.register_endpoint(subject)
    await bus.subscribe("a.good", Recorder())
    await bus.subscribe("a.bad", Recorder(fails=True))
    good = (await bus.publish("a.good", 1, from_="c")).message_id
    bad = (await bus.publish("a.bad", 1, from_="c")).message_id
    lost = (await bus.publish("no.where", 1, from_="c")).message_id
    await settled(bus, "a.good")
    await settled(bus, "a.bad")
    await eventually(lambda: of_type(house.root, "bus.handled") and of_type(house.root, "bus.failed"))
    assert [record.ref for record in of_type(house.root, "bus.handled")] == [good]
    assert [record.ref for record in of_type(house.root, "bus.failed")] == [bad]
    assert lost in [record.ref for record in of_type(house.root, "bus.dead")]


async def test_acknowledged_message_counts_as_handled(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    message_id = (await bus.publish("a.b", 1, from_="c")).message_id
    await bus.ack("a.b", message_id)
    assert [record.ref for record in of_type(house.root, "bus.handled")] == [message_id]


def sum_of_refusals(root: Path) -> int:
    return sum(record.decoded_body()["count"] for record in of_type(root, "bus.refused"))


async def test_refusals_are_recorded_in_aggregate(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 1}})
    await bus.register_endpoint("a.b")
    for number in range(200):
        await bus.publish("a.b", number, from_="c")
    house.clock.advance(120)
    await bus.sweep()
    await eventually(lambda: sum_of_refusals(house.root), lambda total: total == 199)
    refused = of_type(house.root, "bus.refused")
    assert 1 <= len(refused) <= 3
    assert {record.decoded_body()["reason"] for record in refused} == {"rate_limited"}


async def test_refused_budget_is_a_dead_letter_in_the_journal(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c", budget=GivenBudget(ttl=1))
    (dead,) = of_type(house.root, "bus.dead")
    assert dead.decoded_body()["reason"] == "message expired (TTL)"
    assert of_type(house.root, "bus.published") == []


async def test_store_of_the_bus_passes_its_verification(house: House) -> None:
    limits = {"rateLimit": {"maxPerWindow": 100_000}}
    agents = [await house.agent(reliability=limits) for _ in range(2)]
    await agents[0].ask("register", subject="a.b")
    await agents[0].ask("subscribe", pattern="a.b")
    for agent in agents:
        await agent.ask("burst", subject="a.b", count=50, from_="c")
    await agents[0].wait_handled(100)
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    assert verify_store(house.root / "bus.db") == []
    counts = Counter(record.type for record in records(house.root))
    assert counts["bus.published"] == 100
    await eventually(lambda: len(of_type(house.root, "bus.handled")) == 100)


async def test_payloads_of_refused_publishes_are_not_in_the_journal(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 0}})
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", {"secret": "hunter2"}, from_="c")
    assert all("hunter2" not in record.body for record in records(house.root))
