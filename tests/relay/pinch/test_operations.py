"""Operating a relay that speaks Pinch: queues, metrics, the journal and the check of its store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.limits import DAY_S
from posthouse.relay.pinch.submissions import Outcome
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import findings
from tests.relay.pinch.house import QUEUE_FULL, PinchParty, pinching, taken, until, wire

QUEUES = "/v1/meshes/pinch/queues"


async def test_admin_sees_queues_and_rows_of_pinch(edge: Edge, alice: PinchParty, bob: PinchParty) -> None:
    token = await edge.token(edge.admin)
    await alice.send(bob, "one")
    await alice.send(bob, "two")
    (queue,) = (await edge.get(QUEUES, token)).value["queues"]
    assert (queue["recipient"], queue["depth"], queue["parked"]) == (bob.address, 2, 0)
    reply = await edge.get(f"{QUEUES}/rows?node={quote(bob.address)}&limit=1", token)
    assert reply.status == 200, reply.body
    (row,) = reply.value["rows"]
    assert (row["recipient"], row["sender"], row["state"]) == (bob.address, alice.address, "queued")
    following = f"{QUEUES}/rows?node={quote(bob.address)}&after={quote(reply.value['next'])}"
    assert len((await edge.get(following, token)).value["rows"]) == 1


async def test_admin_purges_a_message_of_pinch(edge: Edge, alice: PinchParty, bob: PinchParty) -> None:
    token = await edge.token(edge.admin)
    await alice.send(bob, "purged")
    kept = await alice.send(bob, "kept")
    first, _second = (await edge.get(f"{QUEUES}/rows", token)).value["rows"]
    reply = await edge.post(f"{QUEUES}/purge", {"node": bob.address, "ids": [first["id"]]}, token)
    assert reply.value == {"purged": [first["id"]]}
    await bob.connect()
    assert await bob.pending() == 1
    assert [each.id for each in await bob.receive(1)] == [kept]


async def test_requeued_message_comes_to_an_agent_that_is_connected(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        parked = await alice.send(bob, "parked")
        await bob.connect()
        await bob.receive(1)
        await bob.silence()
        await bob.disconnect()
        await bob.connect()
        assert await bob.left() == []
        reply = await edge.post(f"{QUEUES}/requeue", {"node": bob.address}, await edge.token(edge.admin))
        assert len(reply.value["requeued"]) == 1
        assert [each.id for each in await bob.receive(1)] == [parked]


async def test_only_admins_see_the_pinch_mesh(edge: Edge, alice: PinchParty) -> None:
    token = await edge.token(Author())
    assert (await edge.get(QUEUES, token)).status == 403
    assert (await edge.get("/v1/meshes/pinch/members", token)).status == 403


async def test_metrics_count_agents_and_envelopes(edge: Edge, alice: PinchParty, bob: PinchParty) -> None:
    await alice.send(bob, "counted")
    await edge.server.context.engine.sweeper.count()
    shown = (await edge.get("/metrics", await edge.token(edge.admin))).body.decode()
    assert "posthouse_relay_pinch_connections 1.0" in shown
    assert 'posthouse_relay_pinch_envelopes_total{outcome="accepted",type="message"} 1.0' in shown
    assert 'posthouse_relay_pinch_logins_total{outcome="accepted"} 1.0' in shown
    assert "posthouse_relay_queued_messages 1.0" in shown


async def test_journal_records_each_step_of_a_message(edge: Edge, alice: PinchParty, bob: PinchParty) -> None:
    await bob.connect()
    await bob.silence()
    sent = await alice.send(bob, "told")
    await bob.receive(1)
    await bob.confirm(alice, sent)
    await bob.block(alice)
    await bob.unblock(alice)
    await edge.server.context.engine.sessions.drain()
    records = [each for each in await edge.server.context.engine.store.journal(0, 100) if each.mesh == "pinch"]
    story = [(each.type, each.actor, each.ref) for each in records if not each.type.startswith(("mesh.", "member."))]
    assert sorted(story) == sorted(
        [
            ("pinch.accepted", alice.address, sent),
            ("delivery.sent", bob.address, bob.address),
            ("pinch.confirmed", bob.address, sent),
            ("delivery.confirmed", bob.address, bob.address),
            ("pinch.blocked", bob.address, alice.address),
            ("pinch.blocked", bob.address, alice.address),
        ]
    )
    accepted = next(each for each in records if each.type == "pinch.accepted").decoded_body()
    assert (accepted["recipient"], accepted["message_type"]) == (bob.address, 4)
    confirmed = next(each for each in records if each.type == "pinch.confirmed").decoded_body()
    assert (confirmed["sender"], confirmed["state"], confirmed["was_stored"]) == (alice.address, "delivered", False)
    assert len(bytes.fromhex(confirmed["signature"])) == 64


async def test_block_in_the_name_of_another_agent_blocks_for_its_sender_only(
    edge: Edge, alice: PinchParty, bob: PinchParty
) -> None:
    await bob.connect()
    envelope = bob.agent._envelope("", 11)  # type: ignore[arg-type]
    envelope.block_notification.blocker_address = alice.address
    envelope.block_notification.blocked_address = bob.address
    await bob.agent.send(envelope)
    await until(lambda: bob.address in bob._blocks())
    assert alice._blocks() == set()
    sent = await bob.send(alice, "not blocked")
    assert [each.id for each in await alice.receive(1)] == [sent]


async def test_block_survives_a_restart_and_the_sender_notices_nothing(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay") as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        await bob.connect()
        await bob.block(alice)
    async with pinching(tmp_path / "relay") as edge, wire(edge) as pinch:
        again, reader = PinchParty(edge, alice.agent), PinchParty(edge, bob.agent)
        await again.connect()
        await again.send(reader, "silently dropped")
        assert await again.silence() == []
        await reader.connect()
        assert await reader.silence() == []
        await again.agent.disconnect()
        await reader.agent.disconnect()


async def test_block_of_an_unknown_address_is_answered(alice: PinchParty) -> None:
    await alice.agent.block("pinch:nobody@relay.test")
    assert (await alice.next(QUEUE_FULL)).queue_full.reason == "unknown address"


@pytest.mark.sqlite
async def test_messages_expire_and_old_rows_are_deleted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        await alice.send(bob, "nobody came")
        clock.advance(7 * DAY_S)
        assert await edge.server.context.engine.sweeper.sweep() == 0
        clock.advance(1)
        late = await alice.send(bob, "in time")
        await bob.connect()
        assert await bob.pending() == 1
        assert [each.id for each in await bob.receive(1)] == [late]
        assert await edge.server.context.engine.sweeper.sweep() == 1
        await bob.confirm(alice, late)
        await edge.server.context.engine.sweeper.sweep()
        assert _count(tmp_path, "SELECT count(*) FROM pinch_envelopes") == 1
        assert _count(tmp_path, "SELECT count(*) FROM pinch_envelopes WHERE envelope IS NOT NULL") == 0
        clock.advance(7 * DAY_S + 1)
        await edge.server.context.engine.sweeper.sweep()
        assert _count(tmp_path, "SELECT count(*) FROM pinch_envelopes") == 0
        assert _count(tmp_path, "SELECT count(*) FROM deliveries") == 0


def _count(folder: Path, statement: str) -> int:
    db = apsw.Connection(str(folder / "relay" / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(db.execute(statement).get)
    finally:
        db.close()


TAMPERINGS = {
    "UPDATE pinch_envelopes SET message_id = x'61'": "differs from its record",
    "UPDATE pinch_envelopes SET envelope = x'61' WHERE envelope IS NOT NULL": "differs from its record",
    "UPDATE pinch_envelopes SET message_type = 6": "differs from its record",
    "DELETE FROM pinch_envelopes": "lacks its envelope",
    "UPDATE pinch_envelopes SET envelope = NULL": "lacks its envelope",
    "DELETE FROM deliveries": "has no delivery",
    "UPDATE journal SET body = json_set(body, '$.timestamp', 5) WHERE type = 'pinch.confirmed'": "is not signed by",
    "UPDATE journal SET ref = 'another' WHERE type = 'pinch.confirmed'": "is not signed by",
    "UPDATE mailboxes SET open_rows = open_rows + 1": "differ from the rows",
    "DELETE FROM blocks": "the journal says True",
}


@pytest.mark.sqlite
@pytest.mark.parametrize("statement", TAMPERINGS)
async def test_check_finds_tampered_rows(tmp_path: Path, statement: str) -> None:
    async with pinching(tmp_path / "relay") as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        await bob.connect()
        sent = await alice.send(bob, "confirmed")
        await alice.send(bob, "waiting")
        await bob.receive(2)
        await bob.confirm(alice, sent)
        await alice.block(bob)
    assert findings(tmp_path / "relay") == []
    db = apsw.Connection(str(tmp_path / "relay" / FILE_NAME))
    db.execute(statement)
    db.close()
    assert any(TAMPERINGS[statement] in finding for finding in findings(tmp_path / "relay"))


async def test_confirm_of_a_group_and_messages_share_one_order(edge: Edge, alice: PinchParty, bob: PinchParty) -> None:
    """Envelopes that two agents send at once arrive in the order of each sender."""
    await bob.connect()
    envelopes = [alice.agent.compose(bob.address, str(number)) for number in range(200)]
    for envelope in envelopes:
        await alice.agent.send(envelope)
    got = await bob.receive(200)
    assert [each.body for each in got] == [str(number) for number in range(200)]
    for envelope in envelopes:
        await bob.agent.confirm(envelope)
    assert [each.id for each in await alice.confirmed(200)] == [each.id for each in got]
    assert taken(edge, "delivery_confirm", Outcome.ACCEPTED) == 200
