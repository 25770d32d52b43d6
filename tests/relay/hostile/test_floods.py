"""Floods against a relay process: whatever strangers hold open, members work, logins work and health answers."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.client.certificates import make_certificate
from tests.relay.edge import PATIENCE_S, Author
from tests.relay.process.relay import COMMAND, RelayProcess, environment, relay_process

UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
HALF_BODY = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n" + b" " * 1_000
FLOODS = {
    "silent connections": b"",
    "unfinished heads": b"GET /v1/info HTTP/1.1\r\nHost: local",
    "half bodies": HALF_BODY,
    "streams that do not log in": UPGRADE,
}
STRANGERS = 400


@contextmanager
def flood(relay: RelayProcess, data: bytes, count: int) -> Iterator[None]:
    """Hold this many connections open, each of which has sent something and sends no more."""
    host, _, port = str(relay.ready["listen"]).rpartition(":")
    with ExitStack() as stack:
        for _ in range(count):
            opened = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            opened.sendall(data)
        yield


async def healthy(relay: RelayProcess, tls: ssl.SSLContext | bool = True) -> int:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    url = f"{relay.ready['url']}/healthz"
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=tls) as response:
        return response.status


async def log_in(session: aiohttp.ClientSession, relay: RelayProcess) -> aiohttp.ClientWebSocketResponse[bool]:
    """Open a stream as a new member of the open mesh main."""
    member = await session.ws_connect(f"{relay.ready['url']}/v1/stream")
    hello = await member.receive_json()
    proof = Author().proof(hello[1]["relay"], ("challenge", hello[1]["challenge"]))
    await member.send_json(["AUTH", proof])
    assert (await member.receive_json())[0] == "AUTHED"
    return member


@pytest.mark.parametrize("data", FLOODS.values(), ids=FLOODS)
async def test_flood_of_strangers_stops_neither_health_nor_members_nor_logins(tmp_path: Path, data: bytes) -> None:
    async with relay_process(tmp_path) as relay, aiohttp.ClientSession() as session:
        async with asyncio.timeout(PATIENCE_S):
            member = await log_in(session, relay)
        with flood(relay, data, STRANGERS):
            assert await healthy(relay) == 200
            async with asyncio.timeout(PATIENCE_S):
                await member.send_json(["COUNT", "c"])
                assert (await member.receive_json())[:2] == ["COUNT", "c"]
                await log_in(session, relay)
        assert await healthy(relay) == 200


async def start_limited(tmp_path: Path, limit: str, *options: str) -> tuple[asyncio.subprocess.Process, RelayProcess]:
    command = f'ulimit {limit}; exec "$@"'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", command, "sh", *COMMAND, "--json", "--listen", "127.0.0.1:0", *options),
        env=environment(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        line = await process.stdout.readline()
    return process, RelayProcess(process, json.loads(line))


def descriptor_limits(pid: int) -> list[str]:
    """Return the soft and the hard limit of a process."""
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = [line for line in limits if line.startswith("Max open files")]
    return line.split()[3:5]


async def test_soft_limit_of_descriptors_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    process, relay = await start_limited(tmp_path, "-Sn 80")
    try:
        assert len(set(descriptor_limits(process.pid))) == 1
        with flood(relay, b"", 150):
            assert await healthy(relay) == 200
    finally:
        process.kill()
        await process.communicate()


async def test_relay_without_descriptors_answers_logs_it_and_works_again(tmp_path: Path) -> None:
    process, relay = await start_limited(tmp_path, "-n 200")
    try:
        with flood(relay, b"", 400):
            assert await healthy(relay) == 200
        assert await healthy(relay) == 200
    finally:
        process.terminate()
        _, err = await process.communicate()
    events = [json.loads(line)["event"] for line in err.splitlines() if line.startswith(b"{")]
    assert {"descriptors_few", "connections_displaced"} <= set(events)
    assert b"Traceback" not in err


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_peers_that_finish_no_tls_handshake_use_up_no_descriptors(tmp_path: Path, data: bytes) -> None:
    made = make_certificate(tmp_path / "certificate", "127.0.0.1")
    tls = ssl.create_default_context(cafile=str(made.authority))
    options = ("--tls-cert", str(made.cert), "--tls-key", str(made.key))
    process, relay = await start_limited(tmp_path, "-n 200", *options)
    try:
        with flood(relay, data, 400):
            assert await healthy(relay, tls) == 200
    finally:
        process.terminate()
        _, err = await process.communicate()
    assert b"Traceback" not in err
