"""The MCP server over HTTP keeps out other users, web pages and other machines."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import httpx2

from tests.mcp.agents import BOUND_S, HttpServer, command, environment, http_server, token_in

LIST: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def post(server: HttpServer, headers: dict[str, str], query: str = "", body: Any = LIST) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(BOUND_S)) as http:
        return await http.post(server.url + query, json=body, headers=ACCEPT | headers)


async def test_every_request_needs_the_token_the_host_and_no_foreign_origin(tmp_path: Path) -> None:
    async with http_server(tmp_path / "d") as server:
        right = server.authorization
        port = server.url.split(":")[2].partition("/")[0]
        assert (await post(server, right)).status_code == 200
        assert (await post(server, right | {"Origin": f"http://localhost:{port}"})).status_code == 200
        cases: list[tuple[dict[str, str], str, int, str]] = [
            ({}, "", 401, "mcp_token_missing"),
            ({"Authorization": "Bearer wrong"}, "", 401, "mcp_token_wrong"),
            ({"Authorization": f"Basic {server.token}"}, "", 401, "mcp_token_wrong"),
            ({"Authorization": f"Bearer {server.token}x"}, "", 401, "mcp_token_wrong"),
            ({}, f"?token={server.token}", 400, "token_in_query"),
            (right, f"?token={server.token}", 400, "token_in_query"),
            (right | {"Host": "evil.example"}, "", 403, "host_refused"),
            (right | {"Host": f"127.0.0.1.evil.example:{port}"}, "", 403, "host_refused"),
            (right | {"Origin": "https://evil.example"}, "", 403, "origin_refused"),
            (right | {"Origin": "null"}, "", 403, "origin_refused"),
            (right | {"Origin": "http://localhost:1"}, "", 403, "origin_refused"),
        ]
        for headers, query, status, code in cases:
            answer = await post(server, headers, query)
            assert (answer.status_code, answer.json()["error"]) == (status, code), (headers, query)
            assert answer.json()["hint"]
            assert "access-control-allow-origin" not in answer.headers


async def test_other_paths_and_methods_need_the_token_too(tmp_path: Path) -> None:
    async with http_server(tmp_path / "d") as server, httpx2.AsyncClient(timeout=httpx2.Timeout(BOUND_S)) as http:
        base = server.url.removesuffix("/mcp")
        for method, path in (("GET", "/"), ("GET", "/mcp"), ("OPTIONS", "/mcp"), ("DELETE", "/mcp"), ("GET", "/docs")):
            assert (await http.request(method, base + path)).status_code == 401, (method, path)
        assert (await http.get(base + "/", headers=server.authorization)).status_code == 404


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with http_server(tmp_path / "d") as server:
        assert (await post(server, server.authorization, body={"x": "y" * (1 << 20)})).status_code == 413


def listening_at(port: int) -> list[str]:
    """Return the addresses of this machine that listen on a port, as the kernel writes them."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


async def test_the_server_listens_on_loopback_alone(tmp_path: Path) -> None:
    async with http_server(tmp_path / "d") as server:
        port = int(server.url.split(":")[2].partition("/")[0])
        assert listening_at(port) == [f"0100007F:{port:04X}"]


async def test_the_token_is_private_and_stays_the_same(tmp_path: Path) -> None:
    tokens = []
    for _ in range(2):
        async with http_server(tmp_path / "d") as server:
            tokens.append(server.token)
    assert tokens[0] == tokens[1] and len(tokens[0]) == 43
    assert stat.S_IMODE((tmp_path / "d" / "mcp_token").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700


async def test_a_token_that_others_could_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d" / "mcp_token").write_text("x" * 43)
    (tmp_path / "d" / "mcp_token").chmod(0o644)
    code, body, _ = await ended(tmp_path, "--port", "0")
    assert (code, body["code"]) == (4, "file_not_private")


async def test_a_port_in_use_is_an_error_with_a_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, body, _ = await ended(tmp_path, "--port", str(taken.getsockname()[1]))
    assert body["code"] == "listen_failed"
    assert code != 0


async def test_the_token_is_never_logged(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *programme(tmp_path), "--port", "0",
        env=environment(tmp_path) | {"POSTHOUSE_LOG_LEVEL": "debug"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND_S):
            ready = json.loads(await process.stdout.readline())
        token = token_in(ready["token_file"])
        server = HttpServer(process, ready["url"], token)
        await post(server, {}, f"?token={token}")
        await post(server, server.authorization | {"Host": "evil.example"})
        process.terminate()
        async with asyncio.timeout(BOUND_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert b"token_in_query" in err and b"host_refused" in err
    assert token.encode() not in out + err


def programme(folder: Path) -> list[str]:
    return [sys.executable, *command(folder / "d", "--http", "--json")]


async def ended(folder: Path, *flags: str) -> tuple[int, Any, bytes]:
    """Run a server that does not start; return its exit code and problem."""
    process = await asyncio.create_subprocess_exec(
        *programme(folder), *flags,
        env=environment(folder), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(BOUND_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(err.splitlines()[-1]), out
