"""Answering one request: guard, bounds, route, and whatever happens turned into one answer.

Nothing passes this rim but answers: a refusal is {error, hint, ...}, an unexpected failure is `internal` with a log
line, and a client that went away is nobody to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog
from aiohttp import web

from posthouse.answer import Answer, to_response
from posthouse.daemon.ipc.call import Call, Route
from posthouse.daemon.ipc.guard import Guard
from posthouse.daemon.ipc.refusal import refusal
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.daemon.daemon import Daemon

log = structlog.get_logger(__name__)
_ID = "{id}"
Table = Mapping[str, Mapping[str, Route]]


class Service:
    """Answers the requests of one daemon, whichever way they come."""

    def __init__(self, daemon: Daemon, guard: Guard, table: Table) -> None:
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
        response = to_response(answer)
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


def bad_request(reason: str) -> Answer:
    """Return the answer to what is no HTTP request."""
    return refusal(error("http_malformed", reason=reason))
