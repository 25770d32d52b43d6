"""Who may speak to the HTTP server: whoever knows its token, under this machine's own name, from no foreign page.

The same rules as on the daemon's loopback. Anybody on the machine can connect, and a web page can make a browser do it;
so the check comes before anything of a request is looked at, and answers {error, hint} as the daemon does.
"""

from __future__ import annotations

import re

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from posthouse.daemon.ipc.guard import is_own_origin
from posthouse.keys import same_token
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, error

log = get_log(__name__)
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_BEARER = "Bearer "
_SAFETY = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Guard:
    """Stands before the application of the SDK."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer why not."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._check(Headers(scope=scope), QueryParams(scope["query_string"]))
        except PosthouseError as failure:
            # neither query nor headers: they may hold the secret
            log.warning("security", security=failure.code, method=scope.get("method"), path=scope.get("path"))
            await _answer(failure)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, query: QueryParams) -> None:
        if "token" in query:
            raise error("token_in_query")
        host = headers.get("host", "")
        if _HOST.fullmatch(host) is None or len(headers.getlist("host")) > 1:
            raise error("host_refused", host=host[:200])
        origin = headers.get("origin")
        if origin is not None and not is_own_origin(origin, host):
            raise error("origin_refused", origin=origin[:200])
        self._check_token(headers.getlist("authorization"))

    def _check_token(self, given: list[str]) -> None:
        if not given:
            raise error("mcp_token_missing")
        if len(given) > 1 or not given[0].startswith(_BEARER):
            raise error("mcp_token_wrong")
        if not same_token(given[0][len(_BEARER) :], self._token):
            raise error("mcp_token_wrong")


def _answer(failure: PosthouseError) -> Response:
    body = msgspec.json.encode({"error": failure.code, "hint": failure.hint, "detail": str(failure)})
    headers = dict(_SAFETY)
    if failure.spec.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="posthouse mcp"'
    return Response(body, failure.spec.status, headers, "application/json")
