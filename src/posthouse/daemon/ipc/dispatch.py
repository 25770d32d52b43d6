"""Dispatch of one local request: guard, bounds, route, handler, and one answer for whatever happens.

A refusal is {error, hint, detail, ...}; an unexpected failure is `internal` with a log line; a client that went away
gets no answer. Parameters and bodies are bounded and validated here only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from posthouse.daemon.context import DaemonContext
from posthouse.daemon.ipc.guard import Guard
from posthouse.http.response import JSON, HttpResponse, error_response, to_aiohttp
from posthouse.model.errors import PosthouseError, error
from posthouse.model.strict_json import parse_json

_REALM = "posthouse daemon"


def refusal(failure: PosthouseError) -> HttpResponse:
    """Return a failure with the fields of the case."""
    fields = {name: value for name, value in failure.fields.items() if name not in ("error", "hint", "detail")}
    body = {"error": failure.code, "hint": failure.hint, "detail": str(failure)} | fields
    return error_response(failure, body, JSON, _REALM)


T = TypeVar("T")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Service:
    """Answers the requests of one daemon, whichever way they come."""

    def __init__(self, daemon: DaemonContext, guard: Guard, table: Table) -> None:
        self._daemon = daemon
        self._guard = guard
        self._table = table
        self.running = 0
        self.sleeping = 0
        self.streams = 0

    @property
    def is_stopping(self) -> bool:
        """Tell whether the daemon goes away; its connections have to go too, or a client would stay with it."""
        return self._daemon.is_stopping

    async def answer(self, request: web.BaseRequest, *, is_tcp: bool) -> web.StreamResponse:
        """Answer one request."""
        path = "none"
        self.running += 1
        try:
            self._let_in(request, is_tcp=is_tcp)
            path, route, item_id = self._find(request)
            answer = await route.handler(Call(self._daemon, self, request, item_id))
        except PosthouseError as failure:
            answer = refusal(failure)
            self._daemon.meters.count("posthouse_daemon_requests_refused_total", failure.code)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as failure:
            log.error("request_failed", route=path, exc_info=failure)
            answer = refusal(error("internal", reason=type(failure).__name__))
        finally:
            self.running -= 1
        self._daemon.meters.count("posthouse_daemon_requests_total", path, str(answer.status))
        response = to_aiohttp(answer)
        if self.is_stopping:
            response.force_close()
        return response

    @asynccontextmanager
    async def sleep(self) -> AsyncIterator[None]:
        """Let a request wait for mail without holding a place among those in flight."""
        limit = self._daemon.settings.limits.sleepers
        if self.sleeping >= limit:
            raise error("daemon_busy", limit=limit)
        self.sleeping += 1
        self.running -= 1
        try:
            yield
        finally:
            self.sleeping -= 1
            self.running += 1

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[None]:
        """Let a request be an event stream."""
        limit = self._daemon.settings.limits.streams
        if self.streams >= limit:
            raise error("too_many_streams", limit=limit)
        self.streams += 1
        self.running -= 1
        try:
            yield
        finally:
            self.streams -= 1
            self.running += 1

    def _let_in(self, request: web.BaseRequest, *, is_tcp: bool) -> None:
        limit = self._daemon.settings.limits.requests
        if self.running > limit:
            raise error("daemon_busy", limit=limit)
        if self._daemon.is_stopping:
            raise error("daemon_stopping")
        self._guard.check(request, is_tcp=is_tcp)

    def _find(self, request: web.BaseRequest) -> tuple[str, Route, str]:
        path, item_id = request.path, ""
        methods = self._table.get(path)
        if methods is None:
            folder, _, last = request.rel_url.raw_path.rpartition("/")  # an id may hold a slash, quoted
            item_id = unquote(last)
            path = f"{folder}/{_ID}"
            methods = self._table.get(path) if item_id else None
        if methods is None:
            raise error("route_unknown", path=request.path[:200])
        route = methods.get(request.method)
        if route is None:
            raise error("method_not_allowed", method=request.method[:20], allowed=", ".join(methods))
        return path, route, item_id


class Call(NamedTuple):
    """A request that was let in and routed."""

    daemon: DaemonContext
    service: Service
    request: web.BaseRequest
    #: the id in the path, if the route has one
    id: str

    def arguments(self, type: type[T]) -> T:  # noqa: A002 - the domain's word
        """Return the query parameters as the struct of the route, each given once at most."""
        return read_arguments(self.request, type)

    async def body(self, type: type[T]) -> T:  # noqa: A002
        """Return the JSON body as the struct of the route."""
        value = parse_json(await self._read())
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as fault:
            raise error("body_invalid", reason=str(fault)) from fault

    async def _read(self) -> bytes:
        limits = self.daemon.settings.limits
        request = self.request
        if request.content_length is not None and request.content_length > limits.body_bytes:
            raise error("request_too_large", limit=limits.body_bytes, hint="A message has at most 48 KiB.")
        if request.content.is_eof():  # it came with its headers, as short ones do
            return _check_size(request.content.read_nowait(), limits.body_bytes)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(_CONTINUE)
        try:
            async with asyncio.timeout(limits.body_s):
                return await _gather(request, limits.body_bytes)
        except TimeoutError as fault:
            raise error("request_too_slow", seconds=limits.body_s) from fault
        except (RequestPayloadError, web.HTTPException) as fault:
            raise error("http_malformed", reason="the body is not framed as its headers say") from fault


class Route(NamedTuple):
    """What answers a method of a path."""

    handler: Callable[[Call], Awaitable[HttpResponse]]


def _check_size(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise error("request_too_large", limit=limit, hint="A message has at most 48 KiB.")
    return data


async def _gather(request: web.BaseRequest, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > limit:
            raise error("request_too_large", limit=limit, hint="A message has at most 48 KiB.")
        chunks.append(chunk)
    return b"".join(chunks)


def read_arguments(request: web.BaseRequest, type: type[T]) -> T:  # noqa: A002
    """Return query parameters as a struct; unknown and repeated ones are refused."""
    fields = {field.encode_name for field in msgspec.structs.fields(type)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in request.query.items():
        if name not in fields:
            raise error("parameter_unknown", name=name[:80])
        if name in values:
            raise error("parameter_invalid", name=name, reason="it stands twice")
        values[name] = value
    try:
        return msgspec.convert(values, type, strict=False)
    except msgspec.ValidationError as fault:
        reason, _, path = str(fault).partition(" - at `$.")
        raise error("parameter_invalid", name=path.strip("`") or "query", reason=reason) from fault


log = structlog.get_logger(__name__)
_ID = "{id}"
Table = Mapping[str, Mapping[str, Route]]


def bad_request(reason: str) -> HttpResponse:
    """Return the answer to what is no HTTP request."""
    return refusal(error("http_malformed", reason=reason))
