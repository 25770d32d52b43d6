"""Which messages a Pinch agent gets again: never what it has provably read, and the rest at most twice."""

from __future__ import annotations

import pytest

from examples.pinch_agent.agent import MESSAGE, Agent
from posthouse.model.limits import DELIVERY_BATCH, PINCH_ATTEMPTS_MAX
from posthouse.model.pinch import SentMessage, overtaking_controls, read_by_close, sent_without_progress
from posthouse.relay.pinch.endpoint import PinchEndpoint
from tests.relay.edge import Edge
from tests.relay.pinch.house import PinchParty, endpoint, until
from tests.relay.pinch.raw import logged_in

QUEUES = "/v1/meshes/pinch/queues"


async def dead_letters(edge: Edge) -> list[tuple[str, str]]:
    """Return recipient and reason of the parked messages."""
    await edge.server.context.engine.sessions.drain()
    reply = await edge.get(f"{QUEUES}/rows?state=dead", await edge.token(edge.admin))
    return [(row["recipient"], row["reason"]) for row in reply.value["rows"]]


async def take_and_vanish(edge: Edge, agent: Agent, count: int) -> list[bytes]:
    """Read messages, then vanish without a pong and without a close frame; return their ids."""
    async with logged_in(edge, agent) as connection:
        ids: list[bytes] = []
        while len(ids) < count:
            envelope = await connection.envelope()
            if envelope.type == MESSAGE:
                ids.append(envelope.message_id)
        connection.abort()
    await until(lambda: not is_connected(endpoint(edge), agent.address))
    return ids


def is_connected(pinch: PinchEndpoint, address: str) -> bool:
    return any(each.address == address for each in pinch.connections)


async def test_message_behind_a_pong_is_not_sent_again_and_can_be_confirmed(
    edge: Edge, alice: PinchParty, bob: PinchParty
) -> None:
    sent = await alice.send(bob, "read, not confirmed")
    await bob.connect()
    await bob.receive(1)
    await bob.silence()
    await bob.cut()
    await bob.connect()
    assert await bob.silence() == []
    assert await dead_letters(edge) == [(bob.address, "read_unconfirmed")]
    await bob.confirm(alice, sent)
    assert [each.id for each in await alice.confirmed(1)] == [sent]


async def test_requeued_message_is_sent_again_although_it_was_read(
    edge: Edge, alice: PinchParty, bob: PinchParty
) -> None:
    sent = await alice.send(bob, "once more")
    await bob.connect()
    await bob.receive(1)
    await bob.silence()
    await bob.cut()
    await until(lambda: edge.server.context.engine.sessions.statistics()["open"] == 1)
    await bob.connect()
    await edge.post(f"{QUEUES}/requeue", {"node": bob.address}, await edge.token(edge.admin))
    assert [each.id for each in await bob.receive(1)] == [sent]


@pytest.mark.parametrize("count", [1, 3])
async def test_unread_messages_are_redelivered_twice_and_then_parked(
    edge: Edge, alice: PinchParty, bob: PinchParty, count: int
) -> None:
    sent = [(await alice.send(bob, str(number))).encode() for number in range(count)]
    for _ in range(3):
        assert await take_and_vanish(edge, bob.agent, count) == sent
    await bob.connect()
    assert await bob.silence() == []
    assert await dead_letters(edge) == [(bob.address, "connection_lost")] * count


async def test_agent_that_answers_no_ping_gets_one_page_and_only_that_page_counts_attempts(
    edge: Edge, alice: PinchParty, bob: PinchParty
) -> None:
    sent = [(await alice.send(bob, str(number))).encode() for number in range(DELIVERY_BATCH + 10)]
    for _ in range(PINCH_ATTEMPTS_MAX):
        assert await take_and_vanish(edge, bob.agent, DELIVERY_BATCH) == sent[:DELIVERY_BATCH]
    await bob.connect()
    assert [each.id.encode() for each in await bob.receive(10)] == sent[DELIVERY_BATCH:]
    assert len(await dead_letters(edge)) == DELIVERY_BATCH


async def test_any_confirm_lets_unread_messages_be_redelivered_twice_again(
    edge: Edge, alice: PinchParty, bob: PinchParty
) -> None:
    kept = (await alice.send(bob, "never confirmed")).encode()
    for _ in range(2):
        assert await take_and_vanish(edge, bob.agent, 1) == [kept]
    confirmed = (await alice.send(bob, "confirmed")).encode()
    async with logged_in(edge, bob.agent) as connection:
        while (envelope := await connection.envelope()).message_id != confirmed:
            pass
        await connection.socket.send_bytes(bob.agent.confirmation(envelope).SerializeToString())
        assert [each.id for each in await alice.confirmed(1)] == [confirmed.decode()]
        connection.abort()
    await until(lambda: not is_connected(endpoint(edge), bob.address))
    for _ in range(3):
        assert await take_and_vanish(edge, bob.agent, 1) == [kept]
    assert await dead_letters(edge) == [(bob.address, "connection_lost")]


def test_close_proves_read_what_was_written_a_round_trip_before() -> None:
    sent = [SentMessage(1, 10.0), SentMessage(2, 10.5), SentMessage(3, 11.0)]
    assert read_by_close(sent, closed_s=11.0, round_trip_s=0.5) == [1, 2]
    assert read_by_close(sent, closed_s=11.0, round_trip_s=None) == []


def test_any_confirm_on_the_connection_is_progress() -> None:
    sent = [SentMessage(1, 10.0), SentMessage(2, 12.0)]
    assert sent_without_progress(sent, has_confirmed=False) == [1, 2]
    assert sent_without_progress(sent, has_confirmed=True) == []


def test_control_envelope_overtakes_messages_of_other_senders_only() -> None:
    waiting = [(1, 7, True), (2, 7, False), (3, 8, False), (4, 8, True), (5, 8, False), (6, 9, False)]
    assert overtaking_controls(waiting) == [3, 6]
