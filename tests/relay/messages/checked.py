"""Relays whose store is checked when they stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from posthouse.journal.verify import verify_store
from posthouse.model.clock import Clock
from posthouse.pipeline.audit.stores import audit_histories, read_stores
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.ops.maintenance import RULES
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.relay.both_stores import server_findings, store_of
from tests.relay.edge import Author, Edge, running
from tests.relay.messages.correspondents import confirmation, direct, post, reading, send


@asynccontextmanager
async def checked(data_dir: Path, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Edge]:
    """Run a relay with other settings of its queues where given; afterwards nothing may be wrong with its store."""
    limits = {name: settings.pop(name) for name in ("event_rate", "pinch") if name in settings}
    async with running(data_dir, clock, deliveries=DeliverySettings(**settings), **limits) as edge:
        yield edge
    assert findings(data_dir) == []


def findings(data_dir: Path) -> list[str]:
    """Return what `relay check`, `relay verify` and the pipeline's audit say about a store."""
    if (url := store_of(data_dir)) is not None:
        return server_findings(url)
    path = data_dir / FILE_NAME
    return [*verify_store(path, RULES), *(f"audit: {finding}" for finding in audit_histories(read_stores([path])))]


async def history(data_dir: Path) -> None:
    """Leave a store in which everything there is to check occurs."""
    alice, bob, carol = Author(), Author(), Author()
    async with checked(data_dir) as edge:
        await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
        for author in (bob, carol):
            await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, await edge.token(author))
        await edge.post("/v1/meshes/main/blocks", {"node": alice.node}, await edge.token(carol))
        messages = [direct(alice, bob, str(number)) for number in range(4)]
        await send(edge, *messages, post(alice, "news", "x", None, ("mention", bob.node)))
        async with reading(edge, bob, window=4) as box:
            await box.delivered(4)
            await box.stream.send("REJECT", messages[0]["id"], "no")
            await box.next("OK")
        await send(edge, confirmation(bob, alice, [messages[1]["id"]]))
