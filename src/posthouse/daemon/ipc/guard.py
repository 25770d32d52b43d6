"""Who may use the local interface: this user over the Unix socket, and who knows the token over loopback.

Over TCP anybody on the machine can connect, and a web page can make a browser do it: so every route needs the token,
the Host must be this machine's own name, and pages of foreign origins are refused whatever they know. A token in an
address is refused even when it is right, because addresses end up in logs.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from posthouse.keys import same_token
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.model.rate import Rate, full_bucket, take

log = structlog.get_logger(__name__)
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_BEARER = "Bearer "


class Guard:
    """Judges requests before their routes are looked at."""

    def __init__(self, token: str, rate: Rate, clock: Clock) -> None:
        self._token = token
        self._rate = rate
        self._clock = clock
        self._bucket = full_bucket(rate, clock.boot_ns())

    def check(self, request: web.BaseRequest, *, is_tcp: bool) -> None:
        """Raise why a request may not go on."""
        if "token" in request.query:
            _security("token_in_query", request, is_tcp=is_tcp)
            raise error("token_in_query")
        if is_tcp:
            self._charge()
            self._check_host(request)
        self._check_origin(request, is_tcp=is_tcp)
        if is_tcp:
            self._check_token(request)

    def _charge(self) -> None:
        self._bucket, wait_ns = take(self._bucket, self._rate, self._clock.boot_ns())
        if wait_ns:
            raise error("request_rate_exceeded", rate=self._rate.per_s, retry_after_s=wait_ns / SECOND_NS)

    def _check_host(self, request: web.BaseRequest) -> None:
        host = request.headers.get("Host", "")
        if _HOST.fullmatch(host) is None:
            _security("host_refused", request, is_tcp=True)
            raise error("host_refused", host=host[:200])

    def _check_origin(self, request: web.BaseRequest, *, is_tcp: bool) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and not is_own_origin(origin, request.headers.get("Host", "")):
            _security("origin_refused", request, is_tcp=is_tcp)
            raise error("origin_refused", origin=origin[:200])

    def _check_token(self, request: web.BaseRequest) -> None:
        given = request.headers.getall("Authorization", [])
        if not given:
            raise error("local_token_missing")
        header = given[0]
        if len(given) > 1 or not header.startswith(_BEARER) or not same_token(header[len(_BEARER) :], self._token):
            _security("local_token_wrong", request, is_tcp=True)
            raise error("local_token_wrong")


def is_own_origin(origin: str, host: str) -> bool:
    """Tell whether an origin is the daemon itself: the same machine and the same port as it was asked under."""
    try:
        parts = urlsplit(origin)
        port, own_port = parts.port, urlsplit(f"//{host}").port
    except ValueError:
        return False
    return parts.scheme == "http" and parts.hostname in _OWN_HOSTS and port == own_port


def _security(event: str, request: web.BaseRequest, *, is_tcp: bool) -> None:
    # neither query nor headers: they may hold the secret
    log.warning("security", security=event, method=request.method, path=request.path, is_tcp=is_tcp)
