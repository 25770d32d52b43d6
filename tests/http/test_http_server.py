"""The shared HTTP server on a real socket: hostile requests, limits and timeouts."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from posthouse.http.admission import AdmissionLimits
from posthouse.http.call import BodyLimits, Call, WaitLimit
from posthouse.http.dispatch import Dispatcher, RequestLimits, ServerCodes
from posthouse.http.guard import LOCAL, Guard, TokenRule
from posthouse.http.response import HttpResponse, error_object_format, json_response, problem_response
from posthouse.http.router import Route, Router
from posthouse.http.server import ConnectionLimits, HttpServer, listen_tcp, listen_unix
from posthouse.model.errors import PosthouseError, error

BOUND_S = 20.0
CODES = ServerCodes(busy="requests_exhausted", stopping="relay_stopping", timeout="relay_not_ready")
RULE = TokenRule(lambda token: token == "secret", "local_token_missing", "local_token_wrong")


@dataclass
class State:
    """The context of the server under test."""

    is_stopping: bool = False
    #: released by a test
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    entered: int = 0
    cancelled: int = 0
    waiters: WaitLimit = field(default_factory=lambda: WaitLimit(1, "daemon_busy"))

    def has_entered(self, count: int) -> bool:
        return self.entered == count


class Counts:
    """Remembers what the dispatcher reported."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, int]] = []
        self.codes: list[str] = []

    def answered(self, route: str, response: HttpResponse, _elapsed_s: float) -> None:
        self.statuses.append((route, response.status))

    def refused(self, code: str) -> None:
        self.codes.append(code)


class Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Query(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 1


async def echo(call: Call[State]) -> HttpResponse:
    return json_response({"name": (await call.body(Body)).name})


async def show(call: Call[State]) -> HttpResponse:
    return json_response({"id": call.params["id"], "limit": call.arguments(Query).limit})


async def hold(call: Call[State]) -> HttpResponse:
    call.context.entered += 1
    try:
        await call.context.gate.wait()
    except asyncio.CancelledError:
        call.context.cancelled += 1
        raise
    return json_response({})


async def wait(call: Call[State]) -> HttpResponse:
    with call.waiting(call.context.waiters):
        return await hold(call)


async def fail(_call: Call[State]) -> HttpResponse:
    raise RuntimeError("a defect")


ROUTES: tuple[Route[Call[State]], ...] = (
    Route("POST", "/echo", echo),
    Route("GET", "/items/{id}", show),
    Route("GET", "/hold", hold),
    Route("GET", "/wait", wait),
    Route("GET", "/long", hold, may_wait=True),
    Route("GET", "/fail", fail),
)


@dataclass
class Running:
    """A server under test."""

    port: int
    state: State
    counts: Counts
    server: HttpServer
    refused: list[str]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data: bytes) -> bytes:
        """Send bytes on a new connection and return everything that comes back."""
        reader, writer = await self.connect()
        writer.write(data)
        async with asyncio.timeout(BOUND_S):
            answer = await reader.read()
        writer.close()
        return answer

    async def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """Send one request and return the status and the JSON body."""
        fields = {"Host": "localhost", "Connection": "close", "Authorization": "Bearer secret"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        if body:
            fields.setdefault("Content-Length", str(len(body)))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value != "-")
        answer = await self.raw(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return parse(answer)


def parse(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), msgspec.json.decode(body)


@asynccontextmanager
async def serving(
    *,
    guard: Guard | None = None,
    connections: ConnectionLimits | None = None,
    running: int = 8,
    timeout_s: float | None = None,
    body: BodyLimits | None = None,
    check_peer: Callable[[asyncio.BaseTransport], PosthouseError | None] | None = None,
    cancels_handlers: bool = False,
) -> AsyncIterator[Running]:
    state, counts, refused = State(), Counts(), list[str]()
    limits = RequestLimits(running, body or BodyLimits(1_000, 5.0), timeout_s)
    errors = problem_response if guard is None else error_object_format("test")
    dispatcher = Dispatcher(state, Router(ROUTES), Call[State], limits, CODES, errors, counts)
    server = HttpServer(
        dispatcher,
        connections or ConnectionLimits(header_bytes=2_000, headers=32),
        guard=guard,
        check_peer=check_peer,
        cancels_handlers=cancels_handlers,
    )
    server.on_refused = refused.append
    listening, port = await listen_tcp(server, "127.0.0.1", 0)
    try:
        yield Running(port, state, counts, server, refused)
    finally:
        listening.close()
        state.gate.set()
        server.pre_shutdown()
        await server.shutdown(1.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.002)


# routes and errors


async def test_a_request_is_routed_and_counted_under_its_template() -> None:
    async with serving() as there:
        assert await there.ask("GET", "/items/a%2Fb?limit=3") == (200, {"id": "a/b", "limit": 3})
        assert await there.ask("POST", "/echo", b'{"name": "x"}') == (200, {"name": "x"})
        assert there.counts.statuses == [("/items/{id}", 200), ("/echo", 200)]


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/nothing", 404, "route_unknown"),
        ("GET", "/echo", 405, "method_not_allowed"),
        ("OPTIONS", "/echo", 405, "method_not_allowed"),
        ("GET", "/items/%zz", 400, "path_invalid"),
        ("GET", "/items/1?colour=red", 400, "parameter_unknown"),
        ("GET", "/items/1?limit=1&limit=2", 400, "parameter_invalid"),
        ("GET", "/items/1?limit=many", 400, "parameter_invalid"),
        ("GET", "/fail", 500, "internal"),
    ],
)
async def test_each_wrong_request_gets_its_problem(method: str, target: str, status: int, code: str) -> None:
    async with serving() as there:
        answered, problem = await there.ask(method, target)
        assert (answered, problem["code"]) == (status, code)
        assert problem["hint"]


async def test_a_method_that_is_not_allowed_names_those_that_are() -> None:
    async with serving() as there:
        answer = await there.raw(b"PUT /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"\r\nAllow: POST\r\n" in answer


async def test_a_target_beyond_the_limit_is_refused_and_the_connection_closed() -> None:
    async with serving() as there:
        status, problem = parse(await there.raw(b"GET /items/" + b"a" * 3_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (status, problem["code"], problem["limit"]) == (431, "header_too_large", 2_000)
        assert (await there.ask("GET", "/items/1"))[0] == 200


async def test_a_header_beyond_the_limit_is_refused() -> None:
    async with serving() as there:
        assert (await there.ask("GET", "/items/1", X="y" * 3_000))[1]["code"] == "header_too_large"


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_bytes_that_are_not_http_get_a_problem(garbage: bytes) -> None:
    async with serving() as there:
        status, problem = parse(await there.raw(garbage))
        assert (status, problem["code"]) == (400, "http_malformed")


# guard


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0", "localhost:x", ""])
async def test_a_foreign_host_is_refused_before_the_route_is_searched(host: str) -> None:
    async with serving(guard=Guard(LOCAL, RULE)) as there:
        status, body = await there.ask("GET", "/nothing", Host=host)
        assert (status, body["error"]) == (403, "host_refused")
        assert there.counts.codes == ["host_refused"]


async def test_two_host_headers_are_refused() -> None:
    async with serving(guard=Guard(LOCAL, RULE)) as there:
        head = b"GET /items/1 HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nAuthorization: Bearer secret\r\n\r\n"
        status, _body = parse(await there.raw(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
        assert status in (400, 403)  # by the parser, or by the guard


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "file://"])
async def test_a_foreign_origin_is_refused_even_with_the_token(origin: str) -> None:
    async with serving(guard=Guard(LOCAL, RULE)) as there:
        status, body = await there.ask("GET", "/items/1", Origin=origin)
        assert (status, body["error"]) == (403, "origin_refused")


async def test_a_wrong_and_a_missing_token_are_refused_with_a_challenge() -> None:
    async with serving(guard=Guard(LOCAL, RULE)) as there:
        assert (await there.ask("GET", "/items/1", Authorization="Bearer guess"))[1]["error"] == "local_token_wrong"
        answer = await there.raw(b"GET /items/1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ") and b'WWW-Authenticate: Bearer realm="test"' in answer
        assert parse(answer)[1]["error"] == "local_token_missing"
        assert (await there.ask("GET", "/items/1"))[0] == 200


# bodies


async def test_a_body_at_the_limit_is_read_and_one_above_it_refused() -> None:
    async with serving(body=BodyLimits(20, 5.0)) as there:
        assert (await there.ask("POST", "/echo", b'{"name":"12345678"}'.ljust(20)))[0] == 200
        assert (await there.ask("POST", "/echo", b'{"name":"12345678"}'.ljust(21)))[1]["code"] == "request_too_large"


async def test_a_chunked_body_is_bounded_while_it_arrives() -> None:
    async with serving(body=BodyLimits(20, 5.0)) as there:
        reader, writer = await there.connect()
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"f\r\n" + b" " * 15 + b"\r\n")
        await writer.drain()
        writer.write(b"f\r\n" + b" " * 15 + b"\r\n")
        async with asyncio.timeout(BOUND_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async with serving(body=BodyLimits(100, 0.05)) as there:
        reader, writer = await there.connect()
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        async with asyncio.timeout(BOUND_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_body_is_invited_only_by_a_handler_that_reads_it() -> None:
    expect = b"Host: x\r\nContent-Length: 13\r\nExpect: 100-continue\r\n\r\n"
    async with serving() as there:
        reader, writer = await there.connect()
        writer.write(b"POST /echo HTTP/1.1\r\n" + expect)
        async with asyncio.timeout(BOUND_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b'{"name": "x"}')
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert (await there.ask("POST", "/nothing", Content_Length="13", Expect="100-continue"))[0] == 404


async def test_media_types_are_checked_where_the_server_requires_json() -> None:
    headers = {"Content_Type": "text/plain"}
    async with serving() as there:
        assert (await there.ask("POST", "/echo", b'{"name": "x"}', **headers))[1]["code"] == "media_type_unsupported"
        gzip = await there.ask("POST", "/echo", b'{"name": "x"}', Content_Encoding="gzip")
        assert gzip[1]["code"] == "media_type_unsupported"
    async with serving(body=BodyLimits(100, 5.0, requires_json=False)) as there:
        assert (await there.ask("POST", "/echo", b'{"name": "x"}', **headers))[0] == 200


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"name": 1}', b'{"name": "a", "name": "b"}', b"\xff"])
async def test_a_body_of_another_form_is_refused(body: bytes) -> None:
    async with serving() as there:
        assert (await there.ask("POST", "/echo", body))[0] == 400


# requests in flight


async def test_requests_beyond_the_slots_are_refused_and_waiting_ones_do_not_count() -> None:
    async with serving(running=1) as there, asyncio.TaskGroup() as tasks:
        for path in ("/wait", "/long", "/long", "/hold"):
            held = there.state.entered
            tasks.create_task(there.ask("GET", path))
            await until(partial(there.state.has_entered, held + 1))
        assert there.server.dispatcher.slots.running == 1
        assert (await there.ask("GET", "/items/1"))[1]["code"] == "requests_exhausted"
        assert (await there.ask("GET", "/long/"))[1]["code"] == "route_unknown"
        there.state.gate.set()
    assert there.server.dispatcher.slots.running == 0


async def test_waits_beyond_their_limit_are_refused() -> None:
    async with serving() as there, asyncio.TaskGroup() as tasks:
        tasks.create_task(there.ask("GET", "/wait"))
        await until(lambda: there.state.waiters.count == 1)
        assert (await there.ask("GET", "/wait"))[1]["code"] == "daemon_busy"
        there.state.gate.set()
    assert there.state.waiters.count == 0


async def test_a_handler_that_takes_too_long_is_ended() -> None:
    async with serving(timeout_s=0.05) as there:
        assert (await there.ask("GET", "/hold"))[1]["code"] == "relay_not_ready"
        assert there.state.cancelled == 1


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_client_that_leaves_ends_its_handler_only_where_the_server_says_so(cancels: bool) -> None:
    async with serving(cancels_handlers=cancels) as there:
        _reader, writer = await there.connect()
        writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: there.state.entered == 1)
        writer.close()
        await until(lambda: there.server.open == 0)
        await until(lambda: there.state.cancelled == cancels)


# connections


async def test_headers_that_do_not_arrive_in_time_close_the_connection() -> None:
    async with serving(connections=ConnectionLimits(header_bytes=2_000, headers=32, header_s=0.05)) as there:
        status, problem = parse(await there.raw(b"GET /items/1 HTTP/1.1\r\nHost:"))
        assert (status, problem["code"]) == (408, "request_too_slow")
        assert there.refused == ["request_too_slow"]


async def test_newer_connection_of_a_stranger_takes_the_place_of_the_oldest_and_of_no_member() -> None:
    limits = ConnectionLimits(header_bytes=2_000, headers=32, admission=AdmissionLimits(strangers_per_address=2))
    async with serving(connections=limits) as there:
        opened = [await there.connect() for _ in range(2)]
        await until(lambda: there.server.open == 2)
        there.server.admission.promote(next(reversed(there.server.admission._strangers)), "member")
        opened += [await there.connect() for _ in range(2)]
        async with asyncio.timeout(BOUND_S):
            status, problem = parse(await opened[0][0].read())
        assert (status, problem["code"]) == (503, "connections_exhausted")
        assert there.refused == ["connections_exhausted"]
        member, to_member = opened[1]
        to_member.write(b"GET /items/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            await member.readuntil(b'"limit":1}')
        for _, writer in opened:
            writer.close()


async def test_a_refused_peer_gets_a_response_before_it_sends_anything() -> None:
    async with serving(check_peer=lambda _transport: error("peer_refused")) as there:
        assert parse(await there.raw(b""))[1]["code"] == "peer_refused"


async def test_a_stopping_server_refuses_and_closes_kept_connections() -> None:
    async with serving() as there:
        reader, writer = await there.connect()
        writer.write(b"GET /items/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            await reader.readuntil(b'"limit":1}')
        there.state.is_stopping = True
        writer.write(b"GET /items/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            assert b"relay_stopping" in await reader.read()
        writer.close()
        assert await there.raw(b"") == b""


async def test_a_port_in_use_and_a_path_too_long_are_listen_failed(tmp_path: Path) -> None:
    async with serving() as there:
        with pytest.raises(PosthouseError) as refused:
            await listen_tcp(there.server, "127.0.0.1", there.port)
        assert (refused.value.code, refused.value.fields["reason"]) == ("listen_failed", "Address already in use")
        with pytest.raises(PosthouseError) as refused:
            await listen_unix(there.server, tmp_path / ("s" * 120))
        assert refused.value.code == "listen_failed"
        assert "a shorter path" in refused.value.hint, "a socket has no port to change"


async def test_a_socket_below_a_long_path_is_reached_through_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir(mode=0o700)
    async with serving() as there:
        listening = await listen_unix(there.server, folder / "sock")
        assert stat.S_IMODE((folder / "sock").stat().st_mode) == 0o600
        directory = os.open(folder, os.O_RDONLY)
        try:
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/sock")
        finally:
            os.close(directory)
        writer.write(b"GET /items/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            await reader.readuntil(b'"limit":1}')
        writer.close()
        listening.close()
        await listening.wait_closed()
