"""Request targets and routes: decode a target strictly, find the route that it names.

A target is split into segments before the segments are percent-decoded, and nothing is normalized: a quoted slash
stays inside its segment, `..` is an ordinary name. Fixed segments win over parameters; a path that exists only under
another method is method_not_allowed. A Route also declares the types that OpenAPI shows; it does not check them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from posthouse.http.response import JSON, HttpResponse
from posthouse.model.errors import error

_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_FORBIDDEN = re.compile(r"[^\x21-\x7e]|[#]")
_KNOWN_TARGETS = 256  # programs ask for the same few again and again
_KNOWN_CHARS = 256  # of a target that is remembered
CallT = TypeVar("CallT")
Handler = Callable[[CallT], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class Target:
    """The decoded parts of a request target."""

    segments: tuple[str, ...]
    query: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        """The path without the query, for logs and errors."""
        return "/" + "/".join(self.segments)


def parse_target(text: str) -> Target:
    """Return the parts of a target, or raise path_invalid."""
    # a query differs each time, and may hold a secret
    return _parse_known(text) if len(text) <= _KNOWN_CHARS and "?" not in text else _parse(text)


def _parse(text: str) -> Target:
    if _FORBIDDEN.search(text) is not None:
        raise error("path_invalid", reason="it holds a character that must be percent-encoded")
    if not text.startswith("/"):
        origin = _ORIGIN.match(text)
        text = text[origin.end() :] if origin else text
    path, _, query = text.partition("?")
    if not path.startswith("/"):
        raise error("path_invalid", reason="it does not begin with a slash")
    segments = tuple(_percent_decode(segment) for segment in path[1:].split("/"))
    return Target(segments, tuple(_parse_parameter(part) for part in query.split("&") if part))


_parse_known = lru_cache(maxsize=_KNOWN_TARGETS)(_parse)


def _parse_parameter(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return _percent_decode(name.replace("+", " ")), _percent_decode(value.replace("+", " "))


def _percent_decode(text: str) -> str:
    if "%" not in text:
        return text
    if _BAD_PERCENT.search(text) is not None:
        raise error("path_invalid", reason="a percent sign is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError as fault:
        raise error("path_invalid", reason="its percent-encoding is not UTF-8") from fault


@dataclass(frozen=True)
class Route(Generic[CallT]):
    """A method and a path template, the handler that answers it, and its types for OpenAPI."""

    method: str
    #: parts in braces are parameters, one path segment each
    path: str
    handler: Handler[CallT]
    summary: str = ""
    #: True: no authentication is required
    is_public: bool = False
    #: struct of the query parameters
    query: type[Any] | None = None
    #: alternative structs of the JSON body
    bodies: tuple[type[Any], ...] = ()
    #: success status -> type of the JSON response, several as a tuple, or None when the response is not JSON
    responses: dict[int, Any] = field(default_factory=dict)
    #: media type of a response that is not JSON
    media_type: str = JSON
    #: True: `#<tag>` parameters are allowed in addition to those of `query`
    has_tag_filters: bool = False
    #: True: the handler may wait for others; it then takes no request slot and has no time limit
    may_wait: bool = False
    #: True: answered even while the server runs as many requests as it may
    is_vital: bool = False
    #: headers of the server's requests that this route ignores
    ignored_headers: frozenset[str] = frozenset()
    #: path parameters that may be empty
    may_be_empty: frozenset[str] = frozenset()

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments of the path template."""
        return tuple(self.path.split("/")[1:])

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in the path."""
        return [segment[1:-1] for segment in self.segments if segment.startswith("{")]

    @property
    def name(self) -> str:
        """A name that is unique among the routes of a server."""
        words = [segment.strip("{}.") for segment in self.segments]
        return "_".join([self.method.lower(), *(word.replace(".", "_") for word in words)])

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the values of the path parameters, or None if the path does not match."""
        values: dict[str, str] = {}
        for pattern, segment in zip(self.segments, segments, strict=True):
            if pattern.startswith("{"):
                name = pattern[1:-1]
                if not segment and name not in self.may_be_empty:
                    return None
                values[name] = segment
            elif pattern != segment:
                return None
        return values


@dataclass(frozen=True, slots=True)
class RouteMatch(Generic[CallT]):
    """A route and the values of its path parameters."""

    route: Route[CallT]
    params: dict[str, str]


class Router(Generic[CallT]):
    """Finds routes by method and path."""

    def __init__(self, routes: Iterable[Route[CallT]], *, serves_head: bool = True) -> None:
        """Index the routes; `serves_head` answers HEAD like GET, otherwise it is not allowed."""
        self._serves_head = serves_head
        self._by_length: dict[int, list[Route[CallT]]] = {}
        #: paths without parameters: these need no search
        self._fixed: dict[tuple[str, tuple[str, ...]], RouteMatch[CallT]] = {}
        for route in routes:
            self._by_length.setdefault(len(route.segments), []).append(route)
            if not route.parameters:
                self._fixed[route.method, route.segments] = RouteMatch(route, {})
        for same_length in self._by_length.values():
            same_length.sort(key=lambda route: len(route.parameters))

    def find(self, method: str, segments: tuple[str, ...]) -> RouteMatch[CallT]:
        """Return the matching route, or raise route_unknown or method_not_allowed."""
        wanted = "GET" if method == "HEAD" and self._serves_head else method
        return self._fixed.get((wanted, segments)) or self._search(method, wanted, segments)

    def _search(self, method: str, wanted: str, segments: tuple[str, ...]) -> RouteMatch[CallT]:
        path: str | None = None
        allowed: list[str] = []
        for route in self._by_length.get(len(segments), ()):
            params = route.match(segments)
            if params is None:
                continue
            if route.method == wanted:
                return RouteMatch(route, params)
            path = path or route.path
            if route.path == path:
                allowed.append(route.method)
        if path is None:
            raise error("route_unknown", path="/" + "/".join(segments)[:200])
        raise error("method_not_allowed", method=method[:20], allowed=", ".join(allowed))
