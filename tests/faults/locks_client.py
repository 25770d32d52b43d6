"""A client of locks that writes down what it asks and hears: python -m tests.faults.locks_client ...

Over HTTP or on a bare stream that never asks twice by itself. Some requests are sent late, while the client goes
on, and some twice; each sending is an operation of its own in the history. What gets no answer has an unknown
outcome. The history is lines of JSON on stdout: a call before anything is sent, an answer after it came, or that it
was lost, with a moment at which the connection that it was sent on was there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import aiohttp

from posthouse.client.trust.signing import Signer
from posthouse.keys import NodeKey
from posthouse.model.clock import system_clock
from posthouse.model.event import encode_event

ANSWER_S = 20
LEASE_MS = 1_000
SHARED = "library"  # the lock that most holders share
_CLOCK = system_clock()


class Unknown(Exception):
    """Nobody knows what became of a request."""

    def __init__(self, connected_ns: int) -> None:
        super().__init__(connected_ns)
        #: the connection it was sent on was there by then, so the process at its other end had started
        self.connected_ns = connected_ns


class Unsent(Exception):
    """The relay was not reached: the request never left."""


class HttpWay:
    """Requests over HTTP."""

    def __init__(self, url: str, signer: Signer, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._signer = signer
        self._session = session
        self._token: str | None = None

    async def ask(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._token is None:
            self._token = await self._authenticate()
        connected: dict[str, int] = {}
        try:
            given: dict[str, Any] = {
                "headers": {"Authorization": f"Bearer {self._token}"},
                "trace_request_ctx": connected,
            }
            if op == "inspect":
                request = self._session.get(self._url + "/v1/locks", params=arguments, **given)
            else:
                request = self._session.post(f"{self._url}/v1/locks/{op}", json=arguments, **given)
            async with request as response:
                value: dict[str, Any] = await response.json(content_type=None)
        except aiohttp.ClientConnectorError as failure:
            raise Unsent from failure
        except (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError) as failure:
            raise Unknown(connected.get("at", _CLOCK.boot_ns())) from failure
        if value.get("code") == "token_invalid":
            self._token = None
        return value

    async def _authenticate(self) -> str:
        try:
            given = await self._post("/v1/auth/challenge", {"pubkey": self._signer.key.node})
            proof = self._signer.prove(given["relay"], ("challenge", given["challenge"]))
            return str((await self._post("/v1/auth", {"event": json.loads(encode_event(proof))}))["token"])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as failure:
            raise Unsent from failure

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(self._url + path, json=body) as response:
            value: dict[str, Any] = await response.json(content_type=None)
        return value


class StreamWay:
    """Commands on a stream; when it ends, all that is open is unknown, and the next request opens another."""

    def __init__(self, url: str, signer: Signer, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._signer = signer
        self._session = session
        self._socket: aiohttp.ClientWebSocketResponse[bool] | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        req = f"r{next(self._numbers)}"
        try:
            async with asyncio.timeout(ANSWER_S):
                socket = await self._connected()
                connected_ns = _CLOCK.boot_ns()
        except (aiohttp.ClientError, OSError, TimeoutError, TypeError, ValueError) as failure:
            raise Unsent from failure
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = self._open[req] = asyncio.get_running_loop().create_future()
                await socket.send_str(json.dumps(["LOCK", req, op, arguments]))
                value: dict[str, Any] = await answer
                return value
        except (aiohttp.ClientError, OSError, TimeoutError) as failure:
            raise Unknown(connected_ns) from failure

    async def _connected(self) -> aiohttp.ClientWebSocketResponse[bool]:
        async with self._opening:
            if self._socket is None or self._socket.closed:
                socket = await self._session.ws_connect(self._url + "/v1/stream")
                hello = (await socket.receive_json(timeout=ANSWER_S))[1]
                proof = self._signer.prove(hello["relay"], ("challenge", hello["challenge"]))
                await socket.send_str(json.dumps(["AUTH", json.loads(encode_event(proof))]))
                if (await socket.receive_json(timeout=ANSWER_S))[0] != "AUTHED":
                    raise ConnectionError
                self._socket = socket
                self._reader = asyncio.create_task(self._read(socket))
            return self._socket

    async def _read(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        async for message in socket:
            frame = json.loads(message.data)
            for command in frame if isinstance(frame[0], list) else [frame]:
                future = self._open.pop(command[1], None) if command[0] == "LOCKED" else None
                if future is not None and not future.done():
                    future.set_result(command[2])
        self._socket = None
        for future in self._open.values():
            if not future.done():
                future.set_exception(ConnectionError())
        self._open.clear()


class Recorder:
    """Writes the history."""

    def __init__(self, way: HttpWay | StreamWay) -> None:
        self._way = way
        self._numbers = itertools.count(1)

    async def ask(self, op: str, arguments: dict[str, Any], delay_s: float = 0.0) -> dict[str, Any] | None:
        number = next(self._numbers)
        _say({"n": number, "op": op, "at": _CLOCK.boot_ns(), **arguments})
        await asyncio.sleep(delay_s)
        try:
            answer = await self._way.ask(op, arguments)
        except Unknown as lost:
            _say({"n": number, "connected": lost.connected_ns, "lost": True})
            return None
        except Unsent:
            answer = {"code": "unsent"}
        _say({"n": number, "at": _CLOCK.boot_ns(), "answer": answer})
        return None if "code" in answer else answer


async def fight(recorder: Recorder, chance: random.Random, resources: list[str], mark: str) -> None:
    """Fight for locks until stdin ends."""
    background: set[asyncio.Task[Any]] = set()
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    held: dict[str, dict[str, Any]] = {}
    for turn in itertools.count():
        if ended.done():
            break
        resource = chance.choice(resources)
        op, arguments = _choose(chance, resource, held.get(resource), f"{mark}-{turn}")
        if op != "inspect":
            arguments["session"] = mark
        copies = 2 if chance.random() < 0.15 else 1
        delays = [chance.choice([0, 0, 0.02, 0.3]) if copies > 1 or chance.random() < 0.1 else 0 for _ in range(copies)]
        tasks = [asyncio.create_task(recorder.ask(op, arguments, delay)) for delay in delays]
        background.update(tasks)
        for task in tasks:
            task.add_done_callback(background.discard)
        answer = await tasks[0]
        if op == "acquire" and answer is not None:
            held[resource] = {"resource": arguments["resource"], "token": answer["token"]}
        elif op == "release":
            held.pop(resource, None)
        await asyncio.sleep(chance.choice([0.005, 0.02, 0.05, 0.1]))
    await asyncio.gather(*background, return_exceptions=True)


def _choose(chance: random.Random, resource: str, held: dict[str, Any] | None, mark: str) -> tuple[str, dict[str, Any]]:
    if chance.random() < 0.2:
        return "inspect", {"resource": resource}
    if held is not None and chance.random() < 0.8:
        if chance.random() < 0.4:
            return "renew", {**held, "lease_ms": LEASE_MS}
        return "release", dict(held)
    wanted: dict[str, Any] = {"resource": resource, "lease_ms": LEASE_MS}
    if resource == SHARED:
        wanted["mode"] = "shared" if chance.random() < 0.7 else "exclusive"
    if "/" in resource and chance.random() < 0.4:  # the tree above it excludes it, and is excluded by it
        wanted |= {"resource": tree_above(resource), "tree": True}
    if resource != SHARED and chance.random() < 0.5:
        wanted["request_id"] = mark
    if chance.random() < 0.4:
        wanted["wait_ms"] = chance.choice([20, 200, 800])
    return "acquire", wanted


def tree_above(resource: str) -> str:
    """Return the tree that is used in turns with a resource."""
    return resource.rpartition("/")[0]


def _trace() -> aiohttp.TraceConfig:
    """Note for each request when it had a connection: a new one, or one that was open before."""

    async def connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx["at"] = _CLOCK.boot_ns()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return trace


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201 - the campaign reads it


async def main(url: str, transport: str, number: int, seed: str, resources: list[str]) -> None:
    signer = Signer(NodeKey((1 + number // 2).to_bytes(32, "big")), _CLOCK)  # two clients are sessions of one node
    _say({"node": signer.key.node, "session": f"{number}"})
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout, trace_configs=[_trace()]) as session:
        way = (HttpWay if transport == "http" else StreamWay)(url, signer, session)
        await fight(Recorder(way), random.Random(seed), resources, f"{number}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:]))
