"""kill -9 at the worst moments: what got an answer is there once, what got none can be sent again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from posthouse.keys import NodeKey
from tests.client.house import House
from tests.client.waiting import PATIENCE_S
from tests.daemon.hosts import Host, eventually, make_host, running
from tests.faults.relay_process import RelayProcess

ROOT = Path(__file__).resolve().parents[2]
READER = NodeKey(b"r" * 32).node


@asynccontextmanager
async def doomed(house: House, point: str) -> AsyncIterator[tuple[Host, asyncio.subprocess.Process, str]]:
    """A daemon as a process that dies at a point; the host is for afterwards."""
    host = make_host(house.folder, house.url, "doomed")
    pins = house.folder / "doomed-pins.json"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.daemon.children.doomed", point),
        *(str(host.settings.directory), house.url, str(pins)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(3 * PATIENCE_S):
            node = ""
            while not node.startswith("ed25519:"):  # its log is on stdout too
                node = (await process.stdout.readline()).decode()
                assert node
        yield host, process, node.strip()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def died(process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == -signal.SIGKILL


async def send_over(socket: Path, **request: str) -> int | None:
    """Send a request to the process; None when it died without an answer."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
        try:
            async with session.post("http://localhost/v1/send", json=request) as response:
                return response.status
        except aiohttp.ClientError:
            return None


async def messages_at(host: Host) -> int:
    return await host.mesh.uplink.client.count({"kinds": [1000]})


async def test_killed_between_the_commit_of_the_outbox_and_the_answer(house: House) -> None:
    request = {"to": READER, "message": "hello", "client_message_id": "c"}
    async with doomed(house, "outbox_committed") as (host, process, _node):
        assert await send_over(host.settings.directory / "sock", **request) is None
        await died(process)
        async with running(host):
            await host.connected()
            assert (await host.post("/v1/send", **request)).status in (200, 202)
            assert (await host.post("/v1/send", **(request | {"message": "other"}))).status == 409
            await host.until_status("c", "done")
            assert len((await host.get("/v1/outbox"))["items"]) == 1
            assert await messages_at(host) == 1


@pytest.mark.parametrize("point", ["rows_claimed", "relay_committed"])
async def test_killed_between_the_commit_of_the_relay_and_its_answer(house: House, point: str) -> None:
    request = {"to": READER, "message": "hello", "client_message_id": "c"}
    async with doomed(house, point) as (host, process, _node):
        assert await send_over(host.settings.directory / "sock", **request) in (202, None)
        await died(process)
        async with running(host):
            await host.connected()
            row = await host.until_status("c", "done")
            assert row["attempts"] == 2
            assert await messages_at(host) == 1


async def test_relay_killed_between_its_commit_and_its_answer(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path)
    relay.module = "tests.daemon.children.doomed_relay"
    try:
        await asyncio.to_thread(relay.start)
        host = make_host(tmp_path, relay.url, "alice")
        async with running(host):
            await host.connected()
            await host.send(READER, "hello", client_message_id="c")
            await eventually(relay_is_dead(relay), bool)
            assert (await host.row("c"))["status"] in ("inflight", "pending")
            relay.kill()
            relay.module = "posthouse.cli.main"
            await asyncio.to_thread(relay.start)
            row = await host.until_status("c", "done")
            assert row["attempts"] == 2
            assert await messages_at(host) == 1
    finally:
        relay.kill()


def relay_is_dead(relay: RelayProcess) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return relay.is_dead

    return look


async def test_killed_between_the_insert_into_the_inbox_and_the_confirmation(house: House, alice: Host) -> None:
    async with doomed(house, "inbox_inserted") as (host, process, node):
        sent = await alice.send(node, "hello")
        await died(process)

        async def state() -> str:
            return str((await alice.get(f"/v1/messages/{sent['message_id']}"))["relay"]["deliveries"][0]["state"])

        assert await eventually(state, lambda now: now in ("sent", "queued")) != "confirmed"
        async with running(host):
            await eventually(state, lambda now: now == "confirmed")
            assert await host.bodies() == ["hello"]
            received = host.daemon.meters.counted("posthouse_daemon_inbox_received_total")
            assert received == 0  # it was stored before, so it is not announced again
