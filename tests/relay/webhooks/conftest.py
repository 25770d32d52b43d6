"""Fixtures of webhooks: a relay that may send to loopback, and a receiver; quick back-off, each store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.model import webhook
from posthouse.relay.webhooks import dispatcher
from tests.relay.edge import Edge, running
from tests.relay.webhooks.receivers import LOOPBACK, Receiver, receiving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after hundredths of a second."""
    monkeypatch.setattr(webhook, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(dispatcher, "POLL_S", 0.05)


@pytest.fixture
async def edge(tmp_path: Path, each_store: str) -> AsyncIterator[Edge]:
    """A running relay whose operator lets webhooks reach loopback."""
    del each_store
    async with running(tmp_path / "relay", sending=LOOPBACK) as started:
        yield started


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver of webhooks."""
    async with receiving() as started:
        yield started
