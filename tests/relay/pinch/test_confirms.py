"""Confirms: which of them count, what they change, and what the sender gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.pinch_agent.agent import CONFIRM, Agent
from examples.pinch_agent.pinch_pb2 import Envelope
from posthouse.model.clock import FakeClock
from posthouse.model.limits import DAY_S
from posthouse.relay.pinch.submissions import Outcome
from tests.relay.edge import Edge
from tests.relay.pinch.house import HOST, PinchParty, pinching, taken, until, wire


def flip_signature(confirm: Envelope) -> None:
    signature = bytearray(confirm.delivery_confirm.signature)
    signature[10] ^= 1
    confirm.delivery_confirm.signature = bytes(signature)


def move_time(confirm: Envelope) -> None:
    confirm.delivery_confirm.timestamp += 1


def empty_signature(confirm: Envelope) -> None:
    confirm.delivery_confirm.signature = b""


def other_from(confirm: Envelope) -> None:
    confirm.from_address = Agent(HOST).address


def other_message(confirm: Envelope) -> None:
    confirm.delivery_confirm.message_id = b"00000000-0000-0000-0000-000000000000"


def no_payload(confirm: Envelope) -> None:
    confirm.ClearField("delivery_confirm")


def not_utf8(confirm: Envelope) -> None:
    confirm.delivery_confirm.message_id = b"\xff\xff"


FORGERIES = (flip_signature, move_time, empty_signature, other_from, other_message, no_payload, not_utf8)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
async def test_forged_confirm_has_no_effect(
    alice: PinchParty, bob: PinchParty, edge: Edge, forge: Callable[[Envelope], None]
) -> None:
    await bob.connect()
    sent = await alice.send(bob, "not confirmed")
    (envelope,) = await bob.messages(1)
    confirm = bob.agent.confirmation(envelope)
    forge(confirm)
    await bob.agent.send(confirm)
    await until(lambda: taken(edge, "delivery_confirm", Outcome.IGNORED) == 1)
    assert await alice.unread_confirmations() == []
    await bob.confirm(alice, sent)  # it still counts
    assert [each.id for each in await alice.confirmed(1)] == [sent]


async def test_confirm_signed_by_the_sender_itself_has_no_effect(
    alice: PinchParty, bob: PinchParty, edge: Edge
) -> None:
    sent = await alice.send(bob, "hello")
    envelope = Envelope(from_address=alice.address, message_id=sent.encode())
    await alice.agent.confirm(envelope)
    forged = bob.agent.confirmation(envelope)  # rightly signed by bob, brought by alice
    await alice.agent.send(forged)
    await until(lambda: taken(edge, "delivery_confirm", Outcome.IGNORED) == 2)
    await bob.connect()
    assert await bob.pending() == 1


async def test_confirm_reaches_the_sender_as_it_was_signed(alice: PinchParty, bob: PinchParty) -> None:
    sent = await alice.send(bob, "stored")
    await bob.connect()
    (envelope,) = await bob.messages(1)
    confirm = bob.agent.confirmation(envelope)
    assert not confirm.delivery_confirm.was_stored
    await bob.agent.send(confirm)
    told = await alice.next(CONFIRM)
    assert alice.agent.is_confirmed_by_reader(told)
    assert (told.from_address, told.to_address) == (bob.address, alice.address)
    assert told.delivery_confirm.message_id.decode() == sent
    assert told.delivery_confirm.was_stored
    told.delivery_confirm.was_stored = False
    assert told == confirm


async def test_relay_decides_about_was_stored_whatever_the_reader_says(alice: PinchParty, bob: PinchParty) -> None:
    await bob.connect()
    await bob.silence()
    await alice.send(bob, "live")
    (envelope,) = await bob.messages(1)
    confirm = bob.agent.confirmation(envelope)
    confirm.delivery_confirm.was_stored = True
    await bob.agent.send(confirm)
    assert not (await alice.next(CONFIRM)).delivery_confirm.was_stored


@pytest.mark.parametrize("state", ["read_by_agent", "escalated_to_human", "", "anything"])
async def test_confirm_with_another_state_counts_too(alice: PinchParty, bob: PinchParty, state: str) -> None:
    await bob.connect()
    await alice.send(bob, "hello")
    (envelope,) = await bob.messages(1)
    await bob.agent.confirm(envelope, state)
    assert (await alice.next(CONFIRM)).delivery_confirm.state == state
    await bob.cut()
    await bob.connect()
    assert await bob.left() == []


async def test_confirm_of_an_expired_message_has_no_effect(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        await bob.connect()
        sent = await alice.send(bob, "too late")
        await bob.receive(1)
        clock.advance(7 * DAY_S + 1)
        await bob.confirm(alice, sent)
        assert taken(edge, "delivery_confirm", Outcome.IGNORED) == 1
        assert await edge.server.context.engine.sweeper.sweep() == 1


async def test_confirm_goes_to_the_sender_though_it_blocked_the_reader(alice: PinchParty, bob: PinchParty) -> None:
    await bob.connect()
    sent = await alice.send(bob, "hello")
    await bob.receive(1)
    await alice.block(bob)
    await bob.confirm(alice, sent)
    assert [each.id for each in await alice.confirmed(1)] == [sent]


async def test_confirms_beyond_the_reserve_let_the_oldest_go(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", queues={"confirmation_reserve": 5}) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        await bob.connect()
        ids = [await alice.send(bob, str(number)) for number in range(8)]
        await bob.receive(8)
        await alice.disconnect()
        await bob.confirm(alice, *ids)
        await alice.connect()
        assert [each.id for each in await alice.unread_confirmations()] == ids[3:]
