"""Dispatch of one request: parse the target, guard, route, authorize, run the handler, one response for any outcome.

A PosthouseError becomes an error response in the server's format; an unexpected exception becomes `internal` with a
log line; a client that has disconnected gets no response. While the server stops, requests are refused and every
response closes its connection. Web pages that the guard allows may read the responses (CORS).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from posthouse.http.call import BodyLimits, Call, RequestSlots, UnfinishedBodies
from posthouse.http.guard import Guard, head_of
from posthouse.http.response import ErrorFormat, HttpResponse, page_headers, preflight_response, to_aiohttp
from posthouse.http.router import RouteMatch, Router, Target, parse_target
from posthouse.model.errors import Fatal, PosthouseError, error

log = structlog.get_logger(__name__)
CallT = TypeVar("CallT", bound=Call[Any])
_NO_ROUTE = "none"  # in metrics


class ServerContext(Protocol):
    """The part of a server's context that the dispatcher reads."""

    @property
    def is_stopping(self) -> bool:
        """True once the server has begun to stop."""
        ...


class RequestObserver(Protocol):
    """Counts requests."""

    def answered(self, route: str, response: HttpResponse, elapsed_s: float) -> None:
        """Count a response; `route` is the path template, or `none`."""
        ...

    def refused(self, code: str) -> None:
        """Count a request that ended with an error."""
        ...


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of requests."""

    #: requests that may run at once
    running: int
    body: BodyLimits
    #: None: a handler may take any time
    timeout_s: float | None = None
    #: requests of one address whose body is not complete; None: not limited
    unfinished_per_address: int | None = None
    #: bytes in all incomplete bodies of requests without authentication; None: not limited
    unfinished_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ServerCodes:
    """Error codes for the states of a server."""

    #: too many requests run
    busy: str
    stopping: str
    #: a handler took longer than RequestLimits.timeout_s
    timeout: str = "internal"


def allow_all(_call: Call[Any]) -> None:
    """Authorize every request."""


class Dispatcher(Generic[CallT]):
    """Answers the requests of one server with the routes of a router."""

    def __init__(
        self,
        context: ServerContext,
        router: Router[CallT],
        call_type: type[CallT],
        limits: RequestLimits,
        codes: ServerCodes,
        error_format: ErrorFormat,
        observer: RequestObserver,
        authorize: Callable[[CallT], None] = allow_all,
    ) -> None:
        self.context = context
        self.error_format = error_format
        self.slots = RequestSlots(limits.running, codes.busy)
        self.bodies = UnfinishedBodies(limits.unfinished_per_address, limits.unfinished_bytes, codes.busy)
        self._router = router
        self._call_type = call_type
        self._limits = limits
        self._codes = codes
        self._observer = observer
        self._authorize = authorize

    async def answer(self, request: BaseRequest, guard: Guard | None, address: str | None = None) -> StreamResponse:
        """Answer one request with the `guard` of the socket on which it arrived; it counts for `address`."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        route = _NO_ROUTE
        page: str | None = None  # origin of a page of another site
        self.slots.running += 1
        try:
            target = parse_target(request.raw_path)
            if guard is not None:
                page = guard.check(head_of(request, target))
            if page is not None and request.method == "OPTIONS":
                response = preflight_response()
            else:
                match = self._router.find(request.method, target.segments)
                route = match.route.path
                response = await self._run(request, target, match, address)
        except PosthouseError as failure:
            response = self._refuse(failure)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as failure:
            log.error("request_failed", route=route, exc_info=failure)
            response = self.error_format(error("internal", reason=type(failure).__name__))
        finally:
            self.slots.running -= 1
        self._observer.answered(route, response, loop.time() - started_s)
        if page is not None:
            response.headers |= page_headers(page)
        sent = self.to_stream(request, response)
        if self.context.is_stopping:
            sent.force_close()
        return sent

    def to_stream(self, request: BaseRequest, response: HttpResponse) -> StreamResponse:
        """Return what the library sends for a response; a server may change how it is written."""
        return to_aiohttp(response)

    async def _run(
        self, request: BaseRequest, target: Target, match: RouteMatch[CallT], address: str | None
    ) -> HttpResponse:
        if self.context.is_stopping:
            raise error(self._codes.stopping)
        route = match.route
        limits = self._limits.body
        call = self._call_type(
            self.context, request, route, target, match.params, limits, self.slots, self.bodies, address
        )
        self._authorize(call)
        if route.may_wait:
            # as slots.release, whose context manager would take 1 to 2 KB of each open stream as long as it lasts
            self.slots.running -= 1
            try:
                return await route.handler(call)
            finally:
                self.slots.running += 1
        if not route.is_vital:
            self.slots.check()
        timeout_s = self._limits.timeout_s
        if timeout_s is None:
            return await route.handler(call)
        try:
            async with asyncio.timeout(timeout_s):
                return await route.handler(call)
        except TimeoutError as fault:
            raise error(self._codes.timeout, reason=f"the request took longer than {timeout_s} s") from fault

    def _refuse(self, failure: PosthouseError) -> HttpResponse:
        if isinstance(failure, Fatal):
            log.error("request_failed", code=failure.code, reason=str(failure))
        self._observer.refused(failure.code)
        return self.error_format(failure)
