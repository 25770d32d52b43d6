"""Real relay processes on one database: the leader is killed or stopped, and locks are granted again within seconds."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from posthouse.keys import NodeKey
from tests.faults.relay_process import RelayProcess
from tests.relay.cluster.relays import free_port, place_key
from tests.relay.edge import PATIENCE_S, Author

GRANT_S = 5.0  # from the loss of the leader to the next grant
INTERRUPTED = ("leader_lost", "leader_unknown", "store_unavailable", "relay_behind")
pytestmark = pytest.mark.xdist_group("cluster")


class Client:
    """A node that asks one relay for locks."""

    def __init__(self, relay: RelayProcess, session: aiohttp.ClientSession) -> None:
        self._relay = relay
        self._session = session
        self._author = Author()
        self._token: str | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        async with self._session.post(self._relay.url + path, json=body, headers=headers) as response:
            value: dict[str, Any] = await response.json(content_type=None)
            return value

    async def log_in(self) -> None:
        given = await self.post("/v1/auth/challenge", {"pubkey": self._author.node})
        proof = self._author.proof(given["relay"], ("challenge", given["challenge"]))
        self._token = (await self.post("/v1/auth", {"event": proof}))["token"]

    async def acquire(self, resource: str) -> dict[str, Any]:
        """Acquire a lock, repeating what the loss of a leader interrupts."""
        asked = {"resource": resource, "lease_ms": 60_000, "request_id": f"{self._author.node[-16:]}-{resource}"}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self.post("/v1/locks/acquire", asked)
                if answer.get("code") not in INTERRUPTED:
                    return answer
                await asyncio.sleep(0.05)


@pytest.fixture
async def three(tmp_path: Path, database: str) -> AsyncIterator[list[RelayProcess]]:
    """Three relays; the first one leads."""
    key = NodeKey.generate()
    found: list[RelayProcess] = []
    try:
        for number in range(3):
            place_key(tmp_path / str(number) / "relay", key)
            port = free_port()
            flags = ("--store", database, "--advertise", f"http://127.0.0.1:{port}")
            relay = RelayProcess(tmp_path / str(number), *flags)
            relay.port = port
            await asyncio.to_thread(relay.start)
            found.append(relay)
        yield found
    finally:
        for relay in found:
            relay.kill()


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_next_lock_is_granted_within_seconds_after_the_leader_is_lost(
    three: list[RelayProcess], how: str
) -> None:
    leader = three[0]
    async with AsyncExitStack() as stack:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        sessions = [await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout)) for _ in three]
        clients = [Client(relay, session) for relay, session in zip(three, sessions, strict=True)]
        for client in clients:
            await client.log_in()
        before = [await client.acquire(f"before {number}") for number, client in enumerate(clients)]
        if how == "killed":
            leader.kill()
        else:
            leader.signal(signal.SIGSTOP)
        lost_at = time.monotonic()
        after = [await client.acquire("after") for client in clients[1:2]]
        assert time.monotonic() - lost_at < GRANT_S
        tokens = [answer["token"] for answer in (*before, *after)]
        assert tokens == sorted(set(tokens))
        assert (await clients[2].acquire("after"))["code"] == "held"
        assert (await clients[1].acquire("before 0"))["code"] == "held"
        if how == "stopped":
            leader.signal(signal.SIGCONT)
            assert (await clients[0].acquire("after"))["code"] == "held"
            assert (await clients[0].acquire("again"))["token"] > max(tokens)
