"""The guard of a server on the user's own machine: token, Host, Origin, rate.

Every program on the machine can connect to loopback, and a web page can make a browser do it. So each request needs
the token, its Host must be a name of this machine, and an Origin of another site is refused even with the token. A
token in the query is refused even if it is right, because addresses end up in logs. Log entries never contain the
query or the headers. The guard knows no HTTP library: MCP builds a RequestHead from an ASGI scope.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from posthouse.http.router import Target
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS
from posthouse.model.rate import Rate, full_bucket, take

log = structlog.get_logger(__name__)
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_BEARER = "Bearer "
_TOKEN_PARAMETER = "token"


@dataclass(slots=True)
class RequestHead:
    """The parts of a request that the guard checks."""

    method: str
    #: without the query, which may hold a secret
    path: str
    has_token_in_query: bool
    hosts: Sequence[str]
    origin: str | None
    authorizations: Sequence[str]


@dataclass(frozen=True, slots=True)
class TokenRule:
    """How a server recognises its token, and the codes for a missing and for a wrong one."""

    is_token: Callable[[str], bool]
    missing_code: str
    wrong_code: str


class Guard:
    """Checks requests before their routes are searched.

    Without a token rule it guards a transport that only this user can reach, such as a Unix socket: then it refuses
    tokens in the query and foreign origins, and nothing else.
    """

    def __init__(self, token: TokenRule | None, *, rate: Rate | None = None, clock: Clock | None = None) -> None:
        self._token = token
        self._rate = rate
        self._clock = clock or system_clock()
        self._bucket = None if rate is None else full_bucket(rate, self._clock.boot_ns())

    def check(self, head: RequestHead) -> None:
        """Raise the reason why a request is refused, if there is one."""
        if head.has_token_in_query:
            raise self._logged(head, error("token_in_query"))
        self._charge()
        if self._token is not None:
            self._check_host(head)
        self._check_origin(head)
        if self._token is not None:
            self._check_token(head, self._token)

    def _charge(self) -> None:
        if self._rate is None or self._bucket is None:
            return
        self._bucket, wait_ns = take(self._bucket, self._rate, self._clock.boot_ns())
        if wait_ns:
            raise error("request_rate_exceeded", rate=self._rate.per_s, retry_after_s=wait_ns / SECOND_NS)

    def _check_host(self, head: RequestHead) -> None:
        host = head.hosts[0] if head.hosts else ""
        if len(head.hosts) != 1 or _HOST.fullmatch(host) is None:
            raise self._logged(head, error("host_refused", host=host[:200]))

    def _check_origin(self, head: RequestHead) -> None:
        origin = head.origin
        if origin is not None and not is_own_origin(origin, head.hosts[0] if head.hosts else ""):
            raise self._logged(head, error("origin_refused", origin=origin[:200]))

    def _check_token(self, head: RequestHead, rule: TokenRule) -> None:
        if not head.authorizations:
            raise error(rule.missing_code)
        token = bearer_token(head.authorizations[0])
        if len(head.authorizations) > 1 or token is None or not rule.is_token(token):
            raise self._logged(head, error(rule.wrong_code))

    def _logged(self, head: RequestHead, failure: PosthouseError) -> PosthouseError:
        is_tcp = self._token is not None
        log.warning("security", security=failure.code, method=head.method, path=head.path, is_tcp=is_tcp)
        return failure


def head_of(request: web.BaseRequest, target: Target) -> RequestHead:
    """Return what the guard checks of an aiohttp request."""
    headers = request.headers
    return RequestHead(
        request.method,
        target.path,
        has_token_in_query(target.query),
        headers.getall("Host", ()),
        headers.get("Origin"),
        headers.getall("Authorization", ()),
    )


def has_token_in_query(query: Sequence[tuple[str, str]]) -> bool:
    """Return True if a query parameter is named like a token."""
    return any(name == _TOKEN_PARAMETER for name, _ in query)


def bearer_token(header: str) -> str | None:
    """Return the token of an Authorization header, or None if it has another scheme."""
    return header[len(_BEARER) :] if header.startswith(_BEARER) else None


def is_own_origin(origin: str, host: str) -> bool:
    """Return True if an origin is this server: this machine, and the port that the request was sent to."""
    try:
        parts = urlsplit(origin)
        port, own_port = parts.port, urlsplit(f"//{host}").port
    except ValueError:
        return False
    return parts.scheme == "http" and parts.hostname in _OWN_HOSTS and port == own_port
