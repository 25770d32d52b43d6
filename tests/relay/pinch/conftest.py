"""A relay that speaks Pinch, with agents for it; its store is checked after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.relay.edge import Edge
from tests.relay.pinch.house import PinchParty, PinchWire, pinching, wire


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """A running relay whose rate limits never apply."""
    async with pinching(tmp_path / "relay") as started:
        yield started


@pytest.fixture
async def pinch(edge: Edge) -> AsyncIterator[PinchWire]:
    """A factory of agents."""
    async with wire(edge) as made:
        yield made


@pytest.fixture
async def alice(pinch: PinchWire) -> PinchParty:
    """An agent that is connected."""
    party = pinch.party()
    await party.connect()
    return party


@pytest.fixture
def bob(pinch: PinchWire) -> PinchParty:
    """An agent that is not connected."""
    return pinch.party()


@pytest.fixture(autouse=True)
def on_each_store(each_store: str) -> None:
    """Run every test of this folder on SQLite and on PostgreSQL."""
