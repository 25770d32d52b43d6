"""Envelopes of agents: which are forwarded, which are refused and how, which are ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.pinch_agent.agent import MESSAGE, Agent
from examples.pinch_agent.pinch_pb2 import ConnectionRequest, Envelope, MessageType
from posthouse.model.clock import FakeClock
from posthouse.model.limits import DAY_S
from posthouse.relay.pinch.submissions import Outcome
from tests.relay.edge import Edge
from tests.relay.messages.waiting import eventually
from tests.relay.pinch.house import HOST, QUEUE_FULL, RATE_LIMITED, PinchParty, endpoint, pinching, taken, until, wire
from tests.relay.pinch.raw import logged_in

LIMIT = 65_536
HARD_LIMIT = 131_072
REQUEST = MessageType.MESSAGE_TYPE_CONNECTION_REQUEST


def filled(sender: PinchParty, to: PinchParty, size: int) -> Envelope:
    """Return a message of exactly this many bytes."""
    envelope = sender.agent.compose(to.address, "x")
    envelope.encrypted.ciphertext = b"x" * (size - 300)
    envelope.encrypted.ciphertext += b"x" * (size - envelope.ByteSize())
    assert envelope.ByteSize() == size
    return envelope


async def test_envelope_of_the_largest_size_is_delivered_as_it_came(edge: Edge, alice: PinchParty) -> None:
    bob = PinchParty(edge)
    envelope = filled(alice, bob, LIMIT)
    async with logged_in(edge, bob.agent) as reader:
        await alice.agent.send(envelope)
        assert await reader.routed() == envelope


async def test_oversize_is_answered_with_an_error_that_names_the_message(alice: PinchParty, bob: PinchParty) -> None:
    await bob.connect()
    envelope = filled(alice, bob, LIMIT + 1)
    await alice.agent.send(envelope)
    refusal = await alice.next(QUEUE_FULL)
    assert refusal.message_id == envelope.message_id
    assert refusal.queue_full.recipient_address == bob.address
    assert "too large" in refusal.queue_full.reason
    await alice.agent.send(filled(alice, bob, HARD_LIMIT))
    assert "too large" in (await alice.next(QUEUE_FULL)).queue_full.reason
    sent = await alice.send(bob, "the connection is still there")
    assert [each.id for each in await bob.receive(1)] == [sent]


async def test_frame_above_the_hard_limit_closes_the_connection(edge: Edge) -> None:
    async with logged_in(edge) as connection:
        await connection.socket.send_bytes(b"x" * (HARD_LIMIT + 1))
        assert await connection.closed() == 1009


async def test_oversize_garbage_is_answered_too(edge: Edge) -> None:
    async with logged_in(edge) as connection:
        await connection.socket.send_bytes(b"\xff" * (LIMIT + 1))
        assert (await connection.envelope()).type == QUEUE_FULL


async def test_envelope_with_a_spoofed_sender_is_refused(alice: PinchParty, bob: PinchParty, edge: Edge) -> None:
    await bob.connect()
    envelope = alice.agent.compose(bob.address, "from somebody else")
    envelope.from_address = bob.address
    await alice.agent.send(envelope)
    refusal = await alice.next(QUEUE_FULL)
    assert refusal.message_id == envelope.message_id
    assert "from_address" in refusal.queue_full.reason
    assert await bob.left() == []
    assert taken(edge, "message", Outcome.ACCEPTED) == 0


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nobody",
        "pinch:abc@relay.test",
        "pinch:anSpcKpdMpR5GgdWktTxJHrow4AapjhmPGBfj3F1qr3HEbMco@relay.test",
        "pinch:anSpcKpdMpR5GgdWktTxJHrow4AapjhmPGBfj3F1qr3HEbMcn@other.test",
        "pinch:" + "z" * 5_000 + "@relay.test",
    ],
    ids=["empty", "no address", "short", "checksum", "another relay", "endless"],
)
async def test_unknown_address_is_answered_with_the_id(alice: PinchParty, address: str) -> None:
    envelope = alice.agent.compose(alice.address, "to whom")
    envelope.to_address = address
    await alice.agent.send(envelope)
    refusal = await alice.next(QUEUE_FULL)
    assert refusal.message_id == envelope.message_id
    assert refusal.queue_full.recipient_address == address
    assert refusal.queue_full.reason == "unknown address"


@pytest.mark.parametrize("message_id", [b"\xff\xfe", b"a\0b", b"x" * 256])
async def test_message_without_a_usable_id_is_refused(alice: PinchParty, bob: PinchParty, message_id: bytes) -> None:
    envelope = alice.agent.compose(bob.address, "which one")
    envelope.message_id = message_id
    await alice.agent.send(envelope)
    assert (await alice.next(QUEUE_FULL)).message_id == message_id
    await bob.connect()
    assert await bob.left() == []


async def test_unknown_fields_and_a_changed_payload_pass_unharmed(edge: Edge, alice: PinchParty) -> None:
    bob = Agent(HOST)
    data = alice.agent.compose(bob.address, "x").SerializeToString() + b"\xf2\x3f\x05later"  # field 1022
    async with logged_in(edge, bob) as reader:
        socket = alice.agent._socket
        assert socket is not None
        await socket.send_bytes(data)
        envelope = await reader.routed()
        assert b"\xf2\x3f\x05later" in envelope.SerializeToString()
        assert bob.read(envelope) == "x"


@pytest.mark.parametrize("type_", [0, 2, 3, 9, 13, 14, 15])
async def test_types_of_the_relay_itself_are_ignored(alice: PinchParty, bob: PinchParty, type_: int) -> None:
    await bob.connect()
    assert await bob.silence() == []
    for _ in range(3):
        await alice.agent.send(Envelope(version=1, from_address=alice.address, to_address=bob.address, type=type_))  # type: ignore[arg-type]
    sent = await alice.send(bob, "after it")
    assert [each.id for each in await bob.receive(1)] == [sent]
    assert await bob.silence() == []
    assert await alice.silence() == []


@pytest.mark.parametrize("type_", [1, 8, 16, 4_000], ids=["handshake", "heartbeat", "unknown", "far"])
async def test_type_without_a_meaning_for_the_relay_is_routed(alice: PinchParty, bob: PinchParty, type_: int) -> None:
    await alice.agent.send(Envelope(version=1, from_address=alice.address, to_address=bob.address, type=type_))  # type: ignore[arg-type]
    await alice.agent.send(Envelope(version=1, from_address=alice.address, type=type_))  # type: ignore[arg-type]
    sent = await alice.send(bob, "after it")
    await bob.connect()
    assert await bob.pending() == 2
    assert [each.id for each in await bob.receive(1)] == [sent]
    assert [each.type for each in bob.other] == [type_]
    assert await alice.silence() == []


async def test_message_without_an_id_is_complete_once_it_was_read(alice: PinchParty, bob: PinchParty) -> None:
    envelope = alice.agent.compose(bob.address, "no id")
    envelope.message_id = b""
    await alice.agent.send(envelope)
    await bob.connect()
    (received,) = await bob.messages(1)
    assert bob.agent.read(received) == "no id"
    await bob.silence()
    await bob.disconnect()
    await bob.connect()
    assert await bob.silence() == []


async def test_frames_that_are_not_envelopes_are_ignored_up_to_a_limit(edge: Edge) -> None:
    async with logged_in(edge) as connection:
        for _ in range(49):
            await connection.socket.send_bytes(b"\xff\xff")
        await connection.socket.send_bytes(Envelope(version=1).SerializeToString())
        for _ in range(50):
            await connection.socket.send_str("text")
        assert await connection.closed() == 1008


async def test_same_message_again_within_the_ttl_makes_no_second_row(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        envelope = alice.agent.compose(bob.address, "once")
        for _ in range(3):
            await alice.agent.send(envelope)
        await until(lambda: taken(edge, "message", Outcome.ACCEPTED, Outcome.DUPLICATE) == 3)
        await bob.connect()
        assert await bob.pending() == 1
        assert len(await bob.left()) == 1
        await bob.confirm(alice, envelope.message_id.decode())
        clock.advance(7 * DAY_S)
        await alice.agent.send(envelope)
        await until(lambda: taken(edge, "message", Outcome.DUPLICATE) == 3)
        assert len(await bob.left()) == 1
        clock.advance(1)
        await alice.agent.send(envelope)
        await until(lambda: taken(edge, "message", Outcome.ACCEPTED) == 2)
        assert len(await bob.receive(2)) == 2


async def test_two_senders_may_use_the_same_id(alice: PinchParty, bob: PinchParty, edge: Edge) -> None:
    carol = PinchParty(edge)
    await carol.connect()
    first = alice.agent.compose(bob.address, "from alice")
    second = carol.agent.compose(bob.address, "from carol")
    second.message_id = first.message_id
    await alice.agent.send(first)
    await carol.agent.send(second)
    await until(lambda: taken(edge, "message", Outcome.ACCEPTED) == 2)
    await bob.connect()
    got = await bob.messages(2)
    assert {bob.agent.read(each) for each in got} == {"from alice", "from carol"}
    await bob.confirm(carol, second.message_id.decode())
    assert len(await carol.confirmed(1)) == 1
    assert await alice.unread_confirmations() == []
    await carol.agent.disconnect()


async def test_rate_limit_names_the_message_and_says_when_to_send_it_again(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock, rate_per_s=1.0, burst=10) as edge, wire(edge) as pinch:
        alice, bob, carol = pinch.party(), pinch.party(), pinch.party()
        for party in (alice, bob, carol):
            await party.connect()
        ids = [await alice.send(bob, str(number)) for number in range(10)]
        envelope = alice.agent.compose(bob.address, "too much")
        await alice.agent.send(envelope)
        refusal = await alice.next(RATE_LIMITED)
        assert refusal.message_id == envelope.message_id
        assert refusal.rate_limited.retry_after_ms == 1_000 and refusal.rate_limited.reason
        await carol.send(bob, "another address has its own")
        clock.advance(0.5)
        await alice.agent.send(envelope)
        assert (await alice.next(RATE_LIMITED)).rate_limited.retry_after_ms == 500
        clock.advance(0.5)
        await alice.agent.send(envelope)
        got = await bob.receive(12)
        assert [each.id for each in got if each.id in ids] == ids
        assert got[-1].id == envelope.message_id.decode()


async def test_confirms_are_not_rate_limited_nor_do_they_use_the_rate_up(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", FakeClock(), rate_per_s=1.0, burst=2) as edge, wire(edge) as pinch:
        bob, senders = pinch.party(), [pinch.party() for _ in range(15)]
        await bob.connect()
        for sender in senders:
            await sender.connect()
            for number in range(2):
                await sender.send(bob, str(number))
        for envelope in await bob.messages(30):
            await bob.agent.confirm(envelope)
        for sender in senders:
            assert len(await sender.confirmed(2)) == 2
        await bob.send(senders[0], "and the rate is still there")
        assert RATE_LIMITED not in [each.type for each in await bob.silence()]


async def test_rate_below_one_a_second_is_kept(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock, rate_per_s=0.1, burst=1) as edge, wire(edge) as pinch:
        alice = pinch.party()
        await alice.connect()
        await alice.send(alice, "one")
        await alice.agent.write(alice.address, "two")
        assert (await alice.next(RATE_LIMITED)).rate_limited.retry_after_ms == 10_000


async def test_rate_survives_a_reconnect(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", FakeClock(), rate_per_s=1.0, burst=3) as edge, wire(edge) as pinch:
        alice = pinch.party()
        for number in range(3):
            await alice.connect()
            await alice.send(alice, str(number))
            await alice.disconnect()
        await alice.connect()
        await alice.agent.write(alice.address, "too much")
        assert (await alice.next(RATE_LIMITED)).message_id


async def test_connection_request_without_an_id_reaches_an_agent_that_was_away(
    alice: PinchParty, bob: PinchParty, edge: Edge
) -> None:
    await alice.agent.ask(bob.address, "may I?")
    await alice.agent.ask(bob.address, "may I, please?")
    await until(lambda: taken(edge, "connection_request", Outcome.ACCEPTED) == 2)
    await bob.connect()
    assert await bob.pending() == 2
    asked: list[ConnectionRequest] = [(await bob.next(REQUEST)).connection_request for _ in range(2)]
    assert [each.message for each in asked] == ["may I?", "may I, please?"]


async def test_envelope_without_confirm_leaves_once_it_was_read(alice: PinchParty, bob: PinchParty, edge: Edge) -> None:
    await bob.connect()
    await alice.agent.ask(bob.address, "live")
    await bob.next(REQUEST)
    store = edge.server.context.engine.store

    async def waiting() -> int:
        return await store.deliveries.waiting("pinch", bob.address, 0)

    async with bob.agent:

        async def is_empty() -> bool:
            return await waiting() == 0

        await eventually(is_empty)
    await until(lambda: endpoint(edge).logged_in == 1)
    await bob.connect()
    assert await bob.silence() == []


async def test_envelope_that_was_sent_but_not_proved_read_is_sent_again(alice: PinchParty, edge: Edge) -> None:
    bob = Agent(HOST)
    async with logged_in(edge, bob) as deaf:  # it takes frames and answers no ping
        await alice.agent.ask(bob.address, "are you there?")
        assert (await deaf.routed()).type == REQUEST
        deaf.abort()
    await until(lambda: endpoint(edge).logged_in == 1)
    again = PinchParty(edge, bob)
    await again.connect()
    assert (await again.next(REQUEST)).connection_request.message == "are you there?"
    await bob.disconnect()


async def test_message_to_its_own_sender_is_delivered(alice: PinchParty) -> None:
    sent = await alice.send(alice, "note to self")
    assert [each.id for each in await alice.receive(1)] == [sent]


async def test_message_is_delivered_byte_for_byte(edge: Edge, alice: PinchParty) -> None:
    bob = Agent(HOST)
    envelope = alice.agent.compose(bob.address, "sealed")
    async with logged_in(edge, bob) as reader:
        await alice.agent.send(envelope)
        received = await reader.routed()
    assert received.type == MESSAGE
    assert received.SerializeToString(deterministic=True) == envelope.SerializeToString(deterministic=True)
    assert b"sealed" not in received.SerializeToString()


async def test_envelope_beyond_the_bound_of_those_in_flight_is_refused_for_now(
    alice: PinchParty, bob: PinchParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("posthouse.relay.pinch.submissions.MAX_IN_FLIGHT", 0)
        refused = alice.agent.compose(bob.address, "one too many")
        await alice.agent.send(refused)
        assert (await alice.next(RATE_LIMITED)).message_id == refused.message_id
    await bob.connect()
    sent = await alice.send(bob, "again")
    assert [each.id for each in await bob.receive(1)] == [sent]
