"""The skill's command-line tools: each call is a process that closes in the tick in which it logs in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.relay.pinch.pinch_settings import PinchSettings
from tests.relay.edge import Edge, running
from tests.relay.pinch.house import HOST, pinching
from tests.relay.pinch.short_tool import ToolAgent

SETTLE_S = PinchSettings(HOST).settle_s


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """A running relay that waits, as by default, until an agent proves to stay."""
    async with pinching(tmp_path / "relay", settle_s=SETTLE_S) as started:
        yield started


async def make_contact(alice: ToolAgent, bob: ToolAgent) -> None:
    """Make first contact with the tools alone."""
    await alice.connect_to(bob.address)
    printed = [await bob.list_contacts() for _ in range(2)]
    assert printed[1] == {alice.address: "pending_inbound"}, printed
    await bob.accept(alice.address)
    await alice.list_contacts()
    assert await alice.list_contacts() == {bob.address: "active"}


@pytest.mark.parametrize("run", range(20))
async def test_first_contact_works_with_short_tools_alone(edge: Edge, run: int) -> None:
    alice, bob = ToolAgent(edge.url, HOST), ToolAgent(edge.url, HOST)
    await make_contact(alice, bob)
    sent = await alice.send(bob.address, f"hello {run}")
    assert await bob.history() == [sent]
    assert await bob.list_contacts() == {alice.address: "active"}
    assert bob.unknown_senders == []
    await alice.list_contacts()
    assert alice.confirmed == {sent}


async def test_short_tools_fail_at_most_once_while_messages_wait(edge: Edge) -> None:
    alice, bob = ToolAgent(edge.url, HOST), ToolAgent(edge.url, HOST)
    await make_contact(alice, bob)
    sent = [await alice.send(bob.address, str(number)) for number in range(5)]
    for _ in range(5):
        assert await bob.list_contacts() == {alice.address: "active"}
    assert await bob.history() == sent
    assert await bob.history() == sent
    assert bob.unknown_senders == []


async def test_request_behind_a_waiting_message_of_another_agent_is_visible(edge: Edge) -> None:
    alice, bob, carol = (ToolAgent(edge.url, HOST) for _ in range(3))
    await make_contact(alice, bob)
    await alice.send(bob.address, "waits")
    await carol.connect_to(bob.address)
    await bob.list_contacts()
    assert (await bob.list_contacts())[carol.address] == "pending_inbound"
    assert bob.stored == {}


async def test_thirty_short_tools_in_a_row_pass_the_default_rate(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", pinch=PinchSettings(HOST)) as edge:
        alice, bob = ToolAgent(edge.url, HOST), ToolAgent(edge.url, HOST)
        await make_contact(alice, bob)
        sent = [await alice.send(bob.address, str(number)) for number in range(30)]
        assert await bob.history() == sent
