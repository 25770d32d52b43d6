"""The HTTP server: serve one request, and the bounds the library lacks.

Every connection is counted, in all and per address; headers have to arrive in time; what the library's parser
refuses is answered with a problem. A refusal becomes its problem, an unexpected failure `internal` with a log line;
a client that went away gets no answer. (Phase B: posthouse.http.)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from posthouse.http.response import HttpResponse, to_aiohttp
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.relay.context import Edge
from posthouse.relay.http.router import (
    Access,
    Call,
    Found,
    Router,
    Target,
    encode_problem,
    parse_target,
    problem_answer,
)

log = structlog.get_logger(__name__)


class Service:
    """Answers requests with the routes of a table."""

    def __init__(self, edge: Edge, router: Router) -> None:
        self._edge = edge
        self._router = router
        self.running = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        started = asyncio.get_running_loop().time()
        path = "none"
        self.running += 1
        try:
            target = parse_target(request.raw_path)
            found = self._router.find(request.method, target.segments)
            path = found.route.path
            answer = await self._run(request, target, found)
        except PosthouseError as failure:
            answer = self._refuse(failure)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as failure:
            log.error("request_failed", route=path, exc_info=failure)
            answer = problem_answer(error("internal", reason=type(failure).__name__))
        finally:
            self.running -= 1
        self._count(path, answer, started)
        response = to_aiohttp(answer)
        if self._edge.is_stopping:
            response.force_close()
        return response

    async def _run(self, request: web.BaseRequest, target: Target, found: Found) -> HttpResponse:
        limits = self._edge.limits
        if self._edge.is_stopping:
            raise error("relay_stopping")
        call = Call(self._edge, request, found.route, target, found.params)
        if found.route.access is Access.NODE:
            _ = call.node
        if found.route.may_wait:
            self.running -= 1
            try:
                return await found.route.handler(call)
            finally:
                self.running += 1
        if self.running > limits.requests_running:
            raise error("requests_exhausted", limit=limits.requests_running)
        try:
            async with asyncio.timeout(limits.request_s):
                return await found.route.handler(call)
        except TimeoutError as fault:
            raise error("relay_not_ready", reason=f"the request took longer than {limits.request_s} s") from fault

    def _refuse(self, failure: PosthouseError) -> HttpResponse:
        if isinstance(failure, Fatal):
            log.error("request_failed", code=failure.code, reason=str(failure))
        return problem_answer(failure)

    def _count(self, path: str, answer: HttpResponse, started: float) -> None:
        meters = self._edge.meters
        status = 101 if answer.response is not None else answer.status
        meters.count("posthouse_relay_requests_total", path, str(status))
        if answer.response is None:
            elapsed = asyncio.get_running_loop().time() - started
            meters.observe("posthouse_relay_request_seconds", elapsed)


_LINGER_S = 2.0  # to let a client read the refusal of a body it is still sending


class Server(web.Server):
    """Makes a protocol for every connection and counts them."""

    def __init__(self, edge: Edge, service: Service) -> None:
        limits = edge.limits
        super().__init__(
            service,
            access_log=None,
            logger=_QuietLogger(),
            keepalive_timeout=limits.keepalive_s,
            lingering_time=_LINGER_S,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            auto_decompress=False,
        )
        self.edge = edge
        self.open = 0
        self._by_address: Counter[str] = Counter()

    def __call__(self) -> RequestHandler:
        return Protocol(self, loop=asyncio.get_running_loop(), **self._kwargs)

    def admit(self, address: str) -> PosthouseError | None:
        """Count a connection; return why it may not stay, or None."""
        limits = self.edge.limits
        self.open += 1
        self._by_address[address] += 1
        if self.open > limits.connections:
            return error("connections_exhausted", limit=limits.connections)
        if self._by_address[address] > limits.connections_per_address:
            return error("connections_exhausted", limit=limits.connections_per_address)
        return None

    def release(self, address: str) -> None:
        """Forget a connection."""
        self.open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class Protocol(RequestHandler):
    """One connection."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._address: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's are no subclass of asyncio's
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "local"
        refusal = self._server.admit(self._address)
        super().connection_made(transport)
        if refusal is not None:
            self._server.edge.meters.count("posthouse_relay_connections_refused_total", refusal.code)
            self._refuse(stream, refusal)
            return
        if self._server.edge.is_stopping:  # it came after those that are hung up were counted
            self.force_close()
            return
        seconds = self._server.edge.limits.header_s
        self._deadline = self._loop.call_later(seconds, self._expire, stream)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._address is not None:
            self._server.release(self._address)
            self._address = None
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the library refuses, or what broke outside of every handler."""
        if status >= 500:
            log.error("request_failed", exc_info=exc)
            failure = error("internal", reason=type(exc).__name__)
        elif isinstance(exc, LineTooLong):
            failure = error("header_too_large", limit=self.max_field_size)
        else:
            failure = error("http_malformed", reason=(message or "it cannot be parsed").splitlines()[0][:200])
        response = to_aiohttp(problem_answer(failure))
        response.force_close()
        return response

    def _expire(self, transport: asyncio.Transport) -> None:
        if self._request_count == 0 and not transport.is_closing():
            limits = self._server.edge.limits
            self._server.edge.meters.count("posthouse_relay_connections_refused_total", "request_too_slow")
            self._refuse(transport, error("request_too_slow", seconds=limits.header_s))

    def _refuse(self, transport: asyncio.Transport, failure: PosthouseError) -> None:
        body = encode_problem(failure)
        head = (
            f"HTTP/1.1 {failure.spec.status} {failure.spec.title}\r\n"
            f"Content-Type: application/problem+json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode("ascii") + body)
        self.force_close()


class _QuietLogger:
    """The library's log: what matters of it is answered and logged by handle_error."""

    def debug(self, *args: object, **fields: object) -> None:
        """Say nothing."""

    exception = warning = info = error = debug
