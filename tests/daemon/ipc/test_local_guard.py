"""Access to the local API: this user over the Unix socket, and holders of the token over loopback."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import structlog

from posthouse.cli.daemon_home import rotate_token
from posthouse.cli.options import DaemonOptions
from posthouse.cli.output import Output
from posthouse.daemon.ipc.local_server import is_container, peer_uid
from posthouse.daemon.ipc.routes import ROUTES
from posthouse.daemon.settings import IpcLimits
from posthouse.model.rate import Rate
from tests.client.house import House, open_house
from tests.daemon.hosts import Host, Said, host_at, make_host, running

NOBODY = 65_534
reads_only = pytest.mark.asyncio(loop_scope="module")  # tests that change nothing in a daemon share one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A daemon that listens on loopback too, for the tests that only read."""
    async with open_house(tmp_path_factory.mktemp("shared")) as house, host_at(house, "alice", tcp="on") as host:
        yield host


@pytest.fixture
async def tcp(house: House) -> AsyncIterator[Host]:
    """A daemon that listens on loopback too."""
    async with host_at(house, "alice", tcp="on") as host:
        yield host


async def over_tcp(host: Host, path: str, method: str = "GET", *, token: str | None = "right", **headers: str) -> Said:
    if token is not None:
        given = host.daemon.directory.token() if token == "right" else token
        headers = {"Authorization": f"Bearer {given}"} | headers
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{host.daemon.port}{path}", headers=headers) as response,
    ):
        return Said(response.status, await response.json(content_type=None), dict(response.headers))


async def test_loopback_needs_the_token_and_takes_it(tcp: Host) -> None:
    assert (await over_tcp(tcp, "/v1/health")).status == 200


async def test_every_route_needs_the_token_on_loopback(tcp: Host) -> None:
    open_routes = []
    for route in ROUTES:
        missing = await over_tcp(tcp, route.path, route.method, token=None)
        wrong = await over_tcp(tcp, route.path, route.method, token="x" * 43)
        codes = (missing.status, missing["error"], wrong.status, wrong["error"])
        secret = "mcp_token" if route.path == "/mcp" else "local_token"
        if codes != (401, f"{secret}_missing", 401, f"{secret}_wrong"):
            open_routes.append((route.name, codes))
    assert open_routes == []


@reads_only
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "bearer token", "Bearer \xff"])
async def test_other_forms_of_authorization_are_wrong(shared: Host, header: str) -> None:
    answer = await over_tcp(shared, "/v1/health", token=None, Authorization=header)
    assert (answer.status, answer["error"]) == (401, "local_token_wrong")


async def test_part_of_the_token_is_wrong(tcp: Host) -> None:
    token = tcp.daemon.directory.token()
    for given in (token[:-1], token + "A", token.swapcase()):
        assert (await over_tcp(tcp, "/v1/health", token=given)).status == 401


async def test_the_unix_socket_needs_no_token(tcp: Host) -> None:
    assert (await tcp.get("/v1/health")).status == 200


@reads_only
@pytest.mark.parametrize("way", ["tcp", "unix"])
async def test_a_token_in_the_address_is_refused_and_logged_without_it(shared: Host, way: str) -> None:
    token = shared.daemon.directory.token()
    with structlog.testing.capture_logs() as logged:
        path = f"/v1/health?token={token}"
        answer = await (over_tcp(shared, path) if way == "tcp" else shared.get(path))
    assert (answer.status, answer["error"]) == (400, "token_in_query")
    assert [entry["security"] for entry in logged if entry["event"] == "security"] == ["token_in_query"]
    assert token not in json.dumps(logged, default=repr)


@reads_only
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "localhost:7", "LOCALHOST:1"])
async def test_own_names_of_the_machine_are_taken(shared: Host, host: str) -> None:
    assert (await over_tcp(shared, "/v1/health", Host=host)).status == 200


@reads_only
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "0.0.0.0", "10.0.0.1", "", "localhost:x"]
)
async def test_a_foreign_host_is_refused(shared: Host, host: str) -> None:
    answer = await over_tcp(shared, "/v1/health", Host=host)
    assert (answer.status, answer["error"]) == (403, "host_refused")


@reads_only
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil", "file://", "http://localhost:1", "http://["]
)
async def test_a_foreign_origin_is_refused_even_with_the_token(shared: Host, origin: str) -> None:
    answer = await over_tcp(shared, "/v1/health", Origin=origin)
    assert (answer.status, answer["error"]) == (403, "origin_refused")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert (await shared.ask("GET", "/v1/health", headers={"Origin": origin})).status == 403


async def test_the_daemons_own_origin_is_taken(tcp: Host) -> None:
    assert (await over_tcp(tcp, "/v1/health", Origin=f"http://127.0.0.1:{tcp.daemon.port}")).status == 200
    assert (await over_tcp(tcp, "/v1/health", Origin=f"http://localhost:{tcp.daemon.port}")).status == 200


async def test_there_is_no_answer_to_a_preflight(tcp: Host) -> None:
    answer = await over_tcp(tcp, "/v1/send", "OPTIONS")
    assert answer.status == 405
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_loopback_can_be_switched_off(alice: Host) -> None:
    assert alice.daemon.port is None
    assert not alice.daemon.directory.http_port.exists()


def test_containers_are_known_by_their_marks(tmp_path: Path) -> None:
    assert not is_container({}, tmp_path)
    assert is_container({"container": "podman"}, tmp_path)
    assert is_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert is_container({}, tmp_path)


def test_containers_are_known_by_their_control_group(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/docker/abc\n")
    assert is_container({}, tmp_path)


async def test_files_are_private_whatever_the_umask(house: House) -> None:
    before = os.umask(0)
    try:
        async with host_at(house, "alice", tcp="on") as host:
            root = host.daemon.directory.root
            found = {path.name: path.lstat().st_mode for path in root.rglob("*")}
            assert stat.S_IMODE(root.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE(mode) for name, mode in found.items() if not stat.S_ISDIR(mode)}
    assert {"pid", "sock", "http.port", "local_token", "keypair.json", "outbox.db", "inbox.db"} < set(modes)
    assert set(modes.values()) == {0o600}, modes
    assert [stat.S_IMODE(mode) for mode in found.values() if stat.S_ISDIR(mode)] == [0o700]


_ASK_AS_NOBODY = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
peer = socket.socket(socket.AF_UNIX); peer.settimeout(20)
try:
    peer.connect(sys.argv[1])
except PermissionError:
    print("denied"); raise SystemExit
try:
    peer.sendall(b"GET /v1/health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
except BrokenPipeError:
    pass
print(peer.recv(4096).decode())
"""


async def ask_as_nobody(host: Host) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _ASK_AS_NOBODY, str(host.daemon.directory.socket)),
        stdout=subprocess.PIPE,
        cwd="/",
    )
    async with asyncio.timeout(30):
        return (await process.communicate())[0].decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_cannot_reach_the_socket(alice: Host) -> None:
    assert (await ask_as_nobody(alice)).strip() == "denied"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_at_the_socket_is_refused(alice: Host) -> None:
    opened = [alice.daemon.directory.root, *alice.daemon.directory.root.parents]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in opened}
    try:
        for path in opened:
            path.chmod(modes[path] | 0o055)
        alice.daemon.directory.socket.chmod(0o666)
        answer = await ask_as_nobody(alice)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert answer.startswith("HTTP/1.1 403")
    assert "peer_refused" in answer


class MacSocket:
    """A Unix socket of macOS, which describes its peer by a struct xucred."""

    def __init__(self, version: int) -> None:
        self._credentials = struct.pack("=IIh", version, 501, 1) + bytes(66)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (0, 1, 76)
        return self._credentials


class MacTransport(asyncio.BaseTransport):
    """A connection on such a socket."""

    def __init__(self, version: int) -> None:
        super().__init__({"socket": MacSocket(version)})


def test_macos_names_the_user_at_the_socket_in_a_way_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED")
    assert peer_uid(MacTransport(version=0)) == 501
    assert peer_uid(MacTransport(version=1)) == -1, "a struct of another form names no user"


# bounds


async def test_a_body_beyond_the_bound_is_refused(alice: Host) -> None:
    answer = await alice.ask("POST", "/v1/send", data=io.BytesIO(b" " * (1024 * 1024 + 1)))
    assert (answer.status, answer["error"]) == (413, "request_too_large")


async def test_a_chunked_body_beyond_the_bound_is_refused(alice: Host) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * 65_536

    answer = await alice.ask("POST", "/v1/send", data=chunks())
    assert (answer.status, answer["error"]) == (413, "request_too_large")


async def hanging(host: Host) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a request whose body does not arrive."""
    reader, writer = await asyncio.open_unix_connection(str(host.daemon.directory.socket))
    writer.write(b"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
    return reader, writer


async def test_the_65th_request_without_its_body_is_refused_and_complete_ones_are_answered(alice: Host) -> None:
    hang = [await hanging(alice) for _ in range(64)]
    reader, last = await hanging(alice)
    async with asyncio.timeout(20):
        refused = await reader.readuntil(b"\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 429 ") and b"Retry-After" in refused
    assert (await alice.get("/v1/version")).status == 200
    for writer in (last, *(each for _, each in hang)):
        writer.close()


async def test_the_33rd_stream_is_refused(alice: Host) -> None:
    streams = [await alice.session.get("http://localhost/v1/events") for _ in range(32)]
    try:
        assert {stream.status for stream in streams} == {200}
        refused = await alice.get("/v1/events")
        assert (refused.status, refused["error"]) == (429, "too_many_streams")
        assert (await alice.get("/v1/version")).status == 200
    finally:
        for stream in streams:
            stream.close()
    async with asyncio.timeout(20):
        while alice.daemon.context.streams.count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_burst_over_loopback_is_bounded_and_the_unix_socket_is_not(house: House) -> None:
    limits = IpcLimits(tcp_rate=Rate(per_s=1, burst=20))
    async with host_at(house, "alice", tcp="on", limits=limits) as host:
        answers = [await over_tcp(host, "/v1/version") for _ in range(25)]
        assert [answer.status for answer in answers[:20]] == [200] * 20
        assert answers[-1].status == 429
        assert answers[-1]["error"] == "request_rate_exceeded"
        assert int(answers[-1].headers["Retry-After"]) >= 1
        assert {(await host.get("/v1/version")).status for _ in range(50)} == {200}


async def test_the_usual_rate_is_a_hundred_with_a_burst_of_a_thousand() -> None:
    assert IpcLimits().tcp_rate == Rate(per_s=100, burst=1_000)
    assert (IpcLimits().requests, IpcLimits().streams, IpcLimits().body_bytes) == (64, 32, 1024 * 1024)


async def test_bytes_that_are_not_http_are_refused_and_the_daemon_continues(alice: Host) -> None:
    reader, writer = await asyncio.open_unix_connection(str(alice.daemon.directory.socket))
    writer.write(b"\x16\x03\x01\x02\x00garbage\r\n\r\n")
    async with asyncio.timeout(20):
        assert b" 400 " in (await reader.read()).splitlines()[0]
    writer.close()
    assert (await alice.get("/v1/version")).status == 200


@reads_only
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "route_unknown"),
        ("GET", "/", 404, "route_unknown"),
        ("GET", "/v1/send", 405, "method_not_allowed"),
        ("GET", "/v1/inbox?colour=red", 400, "parameter_unknown"),
        ("GET", "/v1/inbox?limit=0", 400, "parameter_invalid"),
        ("GET", "/v1/inbox?limit=1001", 400, "parameter_invalid"),
        ("GET", "/v1/outbox?limit=501", 400, "parameter_invalid"),
        ("GET", "/v1/outbox?status=lost", 400, "parameter_invalid"),
        ("GET", "/v1/inbox?limit=1&limit=2", 400, "parameter_invalid"),
        ("GET", "/v1/inbox/01ARZ3NDEKTSV4RRFFQ69G5FAV", 404, "inbox_item_unknown"),
        ("GET", "/v1/history", 400, "parameter_invalid"),
    ],
)
async def test_wrong_requests_get_their_codes(shared: Host, method: str, path: str, status: int, code: str) -> None:
    answer = await shared.ask(method, path)
    assert (answer.status, answer["error"]) == (status, code)
    assert answer["hint"]


@reads_only
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"to": "a", "to": "b", "message": "m"}', b"\xff", b"null"])
async def test_a_body_that_is_no_request_is_refused(shared: Host, body: bytes) -> None:
    answer = await shared.ask("POST", "/v1/send", data=body, headers={"Content-Type": "application/json"})
    assert answer.status == 400
    assert (await shared.get("/v1/outbox"))["items"] == []


async def test_one_directory_has_one_daemon(alice: Host) -> None:
    second = Host(alice.settings)
    with pytest.raises(Exception, match="already running in") as refused:
        await second.up()
    assert getattr(refused.value, "code", None) == "daemon_running"
    assert (await alice.get("/v1/version")).status == 200


async def test_left_overs_of_a_killed_daemon_do_not_keep_the_next_one_from_starting(
    house: House, tmp_path: Path
) -> None:
    host = make_host(tmp_path, house.url)
    async with running(host):
        pass
    host.daemon.directory.socket.touch()
    host.daemon.directory.pid.write_text("1\n")
    async with running(host):
        assert (await host.get("/v1/version")).status == 200


async def test_the_token_stays_over_restarts(house: House, tmp_path: Path) -> None:
    host = make_host(tmp_path, house.url)
    tokens: list[Any] = []
    for _ in range(2):
        async with running(host):
            tokens.append(host.daemon.directory.token())
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 43


async def test_idle_connections_of_strangers_do_not_keep_the_holder_of_the_token_out(tcp: Host) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", tcp.daemon.port) for _ in range(200)]
    try:
        assert (await over_tcp(tcp, "/v1/health")).status == 200
        async with asyncio.timeout(30):
            oldest = await idle[0][0].read()
        assert b"connections_exhausted" in oldest
    finally:
        for _reader, writer in idle:
            writer.close()


async def test_connection_that_showed_the_token_is_not_displaced_by_strangers(tcp: Host) -> None:
    token = tcp.daemon.directory.token()
    ask = f"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", tcp.daemon.port)
    writer.write(ask)
    async with asyncio.timeout(30):
        await reader.readuntil(b"\r\n\r\n")
        idle = [await asyncio.open_connection("127.0.0.1", tcp.daemon.port) for _ in range(100)]
        writer.write(ask)
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
    for _reader, each in [*idle, (reader, writer)]:
        each.close()


async def test_a_rotated_token_opens_the_port_of_a_running_daemon_and_the_old_one_does_not(tcp: Host) -> None:
    directory = tcp.daemon.directory
    old, tools = directory.token(), directory.mcp_token()
    rotate_token(daemon_options=DaemonOptions(directory=directory.root), output=Output(json=True))
    refused = await over_tcp(tcp, "/v1/health", token=old)
    assert (refused.status, refused["error"]) == (401, "local_token_wrong")
    assert directory.token() != old
    assert (await over_tcp(tcp, "/v1/health")).status == 200
    assert directory.mcp_token() == tools
    rotate_token(mcp=True, daemon_options=DaemonOptions(directory=directory.root), output=Output(json=True))
    refused = await over_tcp(tcp, "/mcp", "POST", token=tools)
    assert (refused.status, refused["error"]) == (401, "mcp_token_wrong")
    assert (await over_tcp(tcp, "/mcp", "POST", token=directory.mcp_token())).status != 401
