"""The guard of every HTTP server here (relay, Pinch, daemon, MCP): Host, Origin, token, rate.

A web page can make a browser connect to any server, loopback included. So an Origin must be the server's own or one
that the operator listed, and a server with known names refuses any other Host: otherwise a page could point its own
host name at the server and become the server's own origin. A request without an Origin does not come from a page of
another site. A token in the query is refused even if it is right, because addresses end up in logs. Log entries never
contain the query or the headers, and floods of refusals are logged in part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import structlog
from aiohttp.web_request import BaseRequest

from posthouse.http.router import Target
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS
from posthouse.model.rate import Rate, full_bucket, take

log = structlog.get_logger(__name__)
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_AUTHORITY = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE)
_ORIGIN = re.compile(rf"([a-z][a-z0-9+.-]*)://{_AUTHORITY.pattern}", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_BEARER = "Bearer "
_TOKEN_PARAMETER = "token"
_KNOWN_HOSTS = 64  # cached: parsing one takes as long as the rest of the check
_LOG_RATE = Rate(per_s=1, burst=20)  # entries about refused requests: a scanner must not fill the log


class Authority(NamedTuple):
    """A host name in lower case and the port after it, if there is one."""

    name: str
    port: int | None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


class Origin(NamedTuple):
    """The origin of a web page; the default port of a scheme is filled in."""

    scheme: str
    host: str
    port: int | None

    def __str__(self) -> str:
        is_default = self.port == _DEFAULT_PORTS.get(self.scheme)
        return f"{self.scheme}://{self.host}" if is_default else f"{self.scheme}://{self.host}:{self.port}"


@lru_cache(maxsize=_KNOWN_HOSTS)
def parse_authority(text: str) -> Authority | None:
    """Return the host and port of a Host header, or None if it is not one."""
    found = _AUTHORITY.fullmatch(text)
    return None if found is None else Authority(found[1].lower(), None if found[2] is None else int(found[2]))


def parse_origin(text: str) -> Origin | None:
    """Return an origin; None for `null` and for text that is not an origin."""
    found = _ORIGIN.fullmatch(text)
    if found is None:
        return None
    scheme = found[1].lower()
    return Origin(scheme, found[2].lower(), int(found[3]) if found[3] else _DEFAULT_PORTS.get(scheme))


@dataclass(frozen=True, slots=True)
class Site:
    """The names of a server: the permitted Host headers, and the origins that are the server's own or listed."""

    #: of the listening socket
    scheme: str = "http"
    #: names of the listening socket; None: it cannot know them, so every Host is served
    hosts: frozenset[str] | None = LOOPBACK_NAMES
    #: names under which a TLS proxy publishes the server
    public_hosts: frozenset[Authority] = frozenset()
    #: other origins whose pages may call the server
    origins: frozenset[Origin] = frozenset()

    def serves(self, hosts: Sequence[str]) -> bool:
        """Return True if the Host headers of a request name this server."""
        if len(hosts) != 1:
            return not hosts and self.hosts is None
        given = parse_authority(hosts[0])
        if given is None:
            return False
        if self.hosts is None or given.name in self.hosts:
            return True
        return any(each.name == given.name for each in self.public_hosts)

    def is_own(self, origin: Origin, hosts: Sequence[str]) -> bool:
        """Return True if an origin is this server, called with these Host headers.

        The port is compared with the one that the browser connected to, which may be that of a forwarded port.
        """
        https = _DEFAULT_PORTS["https"]
        if any(origin == Origin("https", each.name, each.port or https) for each in self.public_hosts):
            return True
        given = parse_authority(hosts[0]) if len(hosts) == 1 else None
        if given is None or origin.scheme != self.scheme:
            return False
        names = frozenset({given.name}) if self.hosts is None else self.hosts
        return origin.host in names and origin.port == (given.port or _DEFAULT_PORTS[self.scheme])


LOCAL = Site()
#: a socket that only this user can reach: no browser can, so its Host may be anything
UNIX = Site(hosts=None)


@dataclass(slots=True)
class RequestHead:
    """The parts of a request that the guard checks."""

    method: str
    #: without the query, which may hold a secret
    path: str
    has_token_in_query: bool
    hosts: Sequence[str]
    origins: Sequence[str]
    authorizations: Sequence[str]


@dataclass(frozen=True, slots=True)
class TokenRule:
    """How a server recognizes its token, and the codes for a missing and for a wrong one."""

    is_token: Callable[[str], bool]
    missing_code: str
    wrong_code: str


class Guard:
    """Checks requests before their routes are searched."""

    def __init__(
        self,
        site: Site = LOCAL,
        token: TokenRule | None = None,
        *,
        path_tokens: Mapping[str, TokenRule] | None = None,
        rate: Rate | None = None,
        allows_on_path: Callable[[str, str], bool] = lambda _path, _origin: False,
        clock: Clock | None = None,
    ) -> None:
        """Make a guard; without a token rule the routes authorize, `allows_on_path` adds origins for some paths.

        The paths in `path_tokens` have other tokens instead.
        """
        self._site = site
        self._token = token
        self._path_tokens = path_tokens or {}
        self._rate = rate
        self._allows_on_path = allows_on_path
        self._clock = clock or system_clock()
        self._bucket = None if rate is None else full_bucket(rate, self._clock.boot_ns())
        self._log_bucket = full_bucket(_LOG_RATE, self._clock.boot_ns())

    def check(self, head: RequestHead) -> str | None:
        """Raise an error if a request is refused; return the origin of another site whose page may read the answer.

        None: the request does not come from a page, or from one of this server's own, which needs no permission.
        """
        if head.has_token_in_query:
            raise self._logged(head, error("token_in_query"))
        if not self._site.serves(head.hosts):
            raise self._logged(head, error("host_refused", host=", ".join(head.hosts)[:200]))
        foreign = self._check_origin(head)
        rule = self._path_tokens.get(head.path, self._token)
        if rule is not None:
            self._check_token(head, rule)
        self._charge()  # last: requests without the token must not use up the rate of its holder
        return foreign

    def _charge(self) -> None:
        if self._rate is None or self._bucket is None:
            return
        self._bucket, wait_ns = take(self._bucket, self._rate, self._clock.boot_ns())
        if wait_ns:
            raise error("request_rate_exceeded", rate=self._rate.per_s, retry_after_s=wait_ns / SECOND_NS)

    def _check_origin(self, head: RequestHead) -> str | None:
        if not head.origins:
            return None
        text = head.origins[0]
        origin = parse_origin(text) if len(head.origins) == 1 else None
        if origin is not None and self._site.is_own(origin, head.hosts):
            return None
        if origin is None or not (origin in self._site.origins or self._allows_on_path(head.path, text)):
            raise self._logged(head, error("origin_refused", origin=text[:200]))
        return text

    def _check_token(self, head: RequestHead, rule: TokenRule) -> None:
        if not head.authorizations:
            raise error(rule.missing_code)
        token = bearer_token(head.authorizations[0])
        if len(head.authorizations) > 1 or token is None or not rule.is_token(token):
            raise self._logged(head, error(rule.wrong_code))

    def _logged(self, head: RequestHead, failure: PosthouseError) -> PosthouseError:
        self._log_bucket, wait_ns = take(self._log_bucket, _LOG_RATE, self._clock.boot_ns())
        if not wait_ns:
            log.warning("security", security=failure.code, method=head.method, path=head.path)
        return failure


def head_of(request: BaseRequest, target: Target) -> RequestHead:
    """Return the parts of an aiohttp request that the guard checks."""
    headers = request.headers
    return RequestHead(
        request.method,
        target.path,
        has_token_in_query(target.query),
        headers.getall("Host", ()),
        headers.getall("Origin", ()),
        headers.getall("Authorization", ()),
    )


def has_token_in_query(query: Sequence[tuple[str, str]]) -> bool:
    """Return True if a query parameter is named like a token."""
    return any(name == _TOKEN_PARAMETER for name, _ in query)


def bearer_token(header: str) -> str | None:
    """Return the token of an Authorization header, or None if it has another scheme."""
    return header[len(_BEARER) :] if header.startswith(_BEARER) else None
