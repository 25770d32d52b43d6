"""Small real histories of every kind of store, made once by driving the product itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.pipeline.audit.stores import Histories, read_stores
from posthouse.pipeline.demo.demo_history import make_history
from tests.pipeline.audit.activity import write_pinch
from tests.pipeline.audit.daemons import write_letters


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of a relay and a bus with a week of traffic, of a relay with two daemons, and of one for Pinch."""
    folder = tmp_path_factory.mktemp("audit")
    demo = make_history(folder / "demo", seed=5, agents=5, messages=250)
    return [demo.relay_db, demo.bus_db, *asyncio.run(write_letters(folder)), asyncio.run(write_pinch(folder / "pinch"))]


@pytest.fixture(scope="session")
def clean(stores: list[Path]) -> Histories:
    return read_stores(stores)
