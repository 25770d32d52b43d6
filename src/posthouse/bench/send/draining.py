"""How fast a backlog leaves once the relay is back, alone and while programs go on sending."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from posthouse.bench.send.process import Relay, RunningDaemon
from posthouse.bench.send.terms import IN_FLIGHT, Scale
from posthouse.bench.send.wire import Senders, make_requests, open_senders
from posthouse.client.daemon import AsyncDaemonClient, DaemonClient

_LOOK_S = 0.005
_PATIENCE_S = 120


async def measure_drain(relay: Relay, daemon: RunningDaemon, destinations: list[str], scale: Scale) -> dict[str, Any]:
    """Fill the outbox while the relay is away, let it drain; then again while sending. The relay runs afterwards.

    Sending while draining is compared with the filling just before it, when nothing drains.
    """
    rates, shares = [], []
    async with DaemonClient(daemon.directory) as client:
        senders = await open_senders(daemon.socket, IN_FLIGHT)
        for _ in range(scale.drains):
            await asyncio.to_thread(relay.stop)
            await senders.rate(make_requests(destinations, scale.backlog))
            rates.append(await _drain(relay, client))
            await asyncio.to_thread(relay.stop)
            alone = await senders.rate(make_requests(destinations, scale.backlog))
            shares.append(await _send_meanwhile(relay, client, senders, destinations, scale) / alone)
        senders.close()
    return {
        "per_s": round(statistics.median(rates)),
        "accept_share": round(statistics.median(shares), 3),
        "rounds": [round(each) for each in rates],
        "shares": [round(each, 3) for each in shares],
        "rows": scale.backlog,
        "destinations": len(destinations),
    }


async def _drain(relay: Relay, client: AsyncDaemonClient) -> float:
    """Return rows per second, from the first that left to the last."""
    full = await _begin(relay, client)
    started = time.perf_counter()
    await _until(client, 0)
    return full / (time.perf_counter() - started)


async def _send_meanwhile(
    relay: Relay, client: AsyncDaemonClient, senders: Senders, destinations: list[str], scale: Scale
) -> float:
    """Return sends per second while the backlog leaves."""
    requests = make_requests(destinations, max(IN_FLIGHT, scale.backlog // 4))
    await _begin(relay, client)
    rate = await senders.rate(requests)
    await _until(client, 0)
    return rate


async def _begin(relay: Relay, client: AsyncDaemonClient) -> int:
    """Start the relay and return how many rows are left when the first have gone."""
    full = await _depth(client)
    await asyncio.to_thread(relay.start)
    return await _until(client, full - 1)


async def _until(client: AsyncDaemonClient, most: int) -> int:
    async with asyncio.timeout(_PATIENCE_S):
        while (depth := await _depth(client)) > most:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(_LOOK_S)
    return depth


async def _depth(client: AsyncDaemonClient) -> int:
    health = await client.health()
    return health.queue_depth + health.inflight
