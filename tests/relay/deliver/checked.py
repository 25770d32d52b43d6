"""Relays whose store is checked when they stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from posthouse.journal.verify import verify_store
from posthouse.model.clock import Clock
from posthouse.pipeline.audit import audit_histories
from posthouse.pipeline.audit.stores import read_stores
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.store.sqlite import FILE_NAME
from posthouse.relay.store.sqlite.check import RULES
from tests.relay.edge import Edge, running


@asynccontextmanager
async def checked(data_dir: Path, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Edge]:
    """Run a relay with other settings of its queues where given; afterwards nothing may be wrong with its store."""
    limits = {name: settings.pop(name) for name in ("event_rate", "pinch") if name in settings}
    async with running(data_dir, clock, deliveries=DeliverySettings(**settings), **limits) as edge:
        yield edge
    assert findings(data_dir) == []


def findings(data_dir: Path) -> list[str]:
    """Return what `relay check`, `relay verify` and the pipeline's audit say about a store."""
    path = data_dir / FILE_NAME
    return [*verify_store(path, RULES), *(f"audit: {finding}" for finding in audit_histories(read_stores([path])))]
