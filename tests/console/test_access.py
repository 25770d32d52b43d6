"""What the console lets in: its own links and tokens, this user, this origin."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from posthouse.client.daemon import AsyncDaemonClient, DaemonAddress
from posthouse.console.access import LINK_TTL_S, Access
from posthouse.console.console_server import ROUTES, ConsoleServer
from posthouse.console.upstream import Upstream
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from tests.client.house import ADMIN, House, open_house

NOBODY = 65_534


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as running:
        yield running


@pytest.fixture
async def console(house: House) -> AsyncIterator[ConsoleServer]:
    """A console without a daemon."""
    clock = FakeClock()
    daemon = AsyncDaemonClient(DaemonAddress(house.folder / "no-daemon"), agent="")
    server = ConsoleServer(Upstream(daemon, house.client(ADMIN), clock), clock)
    await server.start()
    yield server
    await server.stop()


async def ask(console: ConsoleServer, method: str, path: str, **options: Any) -> tuple[int, str, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{console.origin}{path}", **options) as response,
    ):
        return response.status, await response.text(), dict(response.headers)


async def token_of(console: ConsoleServer) -> str:
    return console.context.access.exchange(console.context.access.issue_link())


def test_a_link_works_once_and_only_for_a_minute() -> None:
    clock = FakeClock()
    access = Access(clock)
    first, second = access.issue_link(), access.issue_link()
    token = access.exchange(first)
    access.check(token)
    with pytest.raises(PosthouseError, match="already used"):
        access.exchange(first)
    clock.advance(LINK_TTL_S)
    with pytest.raises(PosthouseError, match="older than 60 s"):
        access.exchange(second)
    with pytest.raises(PosthouseError):
        access.check("x" * len(token))


async def test_every_route_but_shells_and_assets_needs_the_token(console: ConsoleServer) -> None:
    own = {"Origin": console.origin}
    for route in ROUTES:
        path = route.path.replace("{id}", "x").replace("{name}", "console.css")
        status, text, _ = await ask(console, route.method, path, headers=own)
        if route.is_public:
            assert status in (200, 400), (route, status)
        else:
            assert status == 401 and "console_token_missing" in text, (route, status)
    wrong = {**own, "Authorization": "Bearer wrong"}
    assert (await ask(console, "GET", "/data/team", headers=wrong))[0] == 401


async def test_shells_are_empty_and_confined(console: ConsoleServer) -> None:
    status, text, headers = await ask(console, "GET", "/queues")
    assert status == 200 and "cassini" not in text
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["X-Frame-Options"] == "DENY" and "Set-Cookie" not in headers
    assert "Access-Control-Allow-Origin" not in headers


async def test_a_change_needs_the_origin_of_the_console(console: ConsoleServer) -> None:
    token = {"Authorization": f"Bearer {await token_of(console)}"}
    for origin in ({}, {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}, {"Origin": "http://evil.test"}):
        status, text, _ = await ask(console, "POST", "/act/locks/break", headers=token | origin)
        assert (status, "origin_refused" in text) == (403, True)
    status, text, _ = await ask(console, "POST", "/act/locks/break", headers=token | {"Origin": console.origin})
    assert (status, "console_form_invalid" in text) == (400, True)


async def test_another_host_name_is_refused(console: ConsoleServer) -> None:
    status, text, _ = await ask(console, "GET", "/team", headers={"Host": f"rebound.test:{console.port}"})
    assert (status, "host_refused" in text) == (403, True)


async def test_a_token_in_an_address_is_refused(console: ConsoleServer) -> None:
    status, text, _ = await ask(console, "GET", f"/data/team?token={await token_of(console)}")
    assert (status, "token_in_query" in text) == (400, True)


async def test_assets_outside_of_the_package_do_not_exist(console: ConsoleServer) -> None:
    for name in ("..%2Fserver.py", "%2Fetc%2Fpasswd", ".", "server.py", "nothing.css"):
        assert (await ask(console, "GET", f"/static/{name}"))[0] == 404
    assert (await ask(console, "GET", "/static/htmx.LICENSE.txt"))[1].startswith("Zero-Clause BSD")


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
async def test_another_user_of_the_machine_is_refused_before_its_request(console: ConsoleServer) -> None:
    program = (
        f"import encodings.idna, os, socket; os.setuid({NOBODY});"
        f"s = socket.create_connection(('127.0.0.1', {console.port}), 10);"
        "s.sendall(b'GET /team HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n'); print(s.recv(4096).decode())"
    )
    said = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=30
    )
    assert "403" in said.stdout and "console_peer_refused" in said.stdout, said.stderr
