"""Serving one request: route it, check who asks, run its handler, and turn whatever happens into one answer.

Nothing passes this rim but answers: a refusal is its problem, an unexpected failure is `internal` with a log
line, and a client that went away is nobody to answer.
"""

from __future__ import annotations

import asyncio

import structlog
from aiohttp import web

from posthouse.answer import Answer, to_response
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.relay.edge import Edge
from posthouse.relay.http.call import Call
from posthouse.relay.http.problem import problem_answer
from posthouse.relay.http.route import Access
from posthouse.relay.http.router import Found, Router
from posthouse.relay.http.target import Target, parse_target

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
        response = to_response(answer)
        if self._edge.is_stopping:
            response.force_close()
        return response

    async def _run(self, request: web.BaseRequest, target: Target, found: Found) -> Answer:
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

    def _refuse(self, failure: PosthouseError) -> Answer:
        if isinstance(failure, Fatal):
            log.error("request_failed", code=failure.code, reason=str(failure))
        return problem_answer(failure)

    def _count(self, path: str, answer: Answer, started: float) -> None:
        meters = self._edge.meters
        status = 101 if answer.response is not None else answer.status
        meters.count("posthouse_relay_requests_total", path, str(status))
        if answer.response is None:
            elapsed = asyncio.get_running_loop().time() - started
            meters.observe("posthouse_relay_request_seconds", elapsed)
