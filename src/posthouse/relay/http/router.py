"""Requests and routes: the decoded target, the route it finds, the call a handler gets, and problems (RFC 9457).

Targets are decoded strictly: segments are split before they are decoded and nothing is normalised. Fixed segments
win over parameters; a path that exists under another method is 405. Everything a handler reads of a request it
reads from its Call, so sizes, times, media type, strict JSON and unknown fields are checked in one place. (Phase B:
posthouse.http.)
"""

from __future__ import annotations

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from posthouse.http.response import HttpResponse, encode_safely, error_response
from posthouse.model.errors import PosthouseError, error
from posthouse.model.strict_json import parse_json
from posthouse.relay.context import Edge

PROBLEM = "application/problem+json"
_REALM = "posthouse"


def problem_answer(failure: PosthouseError) -> HttpResponse:
    """Return the problem of a failure."""
    return error_response(failure, failure.problem(), PROBLEM, _REALM)


def encode_problem(failure: PosthouseError) -> bytes:
    """Return a problem as JSON."""
    return encode_safely(failure.problem())


_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_FORBIDDEN = re.compile(r"[^\x21-\x7e]|[#]")


@dataclass(frozen=True, slots=True)
class Target:
    """The decoded parts of a request target."""

    segments: tuple[str, ...]
    query: tuple[tuple[str, str], ...]


def parse_target(text: str) -> Target:
    """Return the parts of a target, or raise path_invalid."""
    if _FORBIDDEN.search(text) is not None:
        raise error("path_invalid", reason="it holds a character that must be percent-encoded")
    if not text.startswith("/"):
        origin = _ORIGIN.match(text)
        text = text[origin.end() :] if origin else text
    path, _, query = text.partition("?")
    if not path.startswith("/"):
        raise error("path_invalid", reason="it does not begin with a slash")
    segments = tuple(_percent_decode(segment) for segment in path[1:].split("/"))
    return Target(segments, tuple(_parameter(part) for part in query.split("&") if part))


def _parameter(part: str) -> tuple[str, str]:
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


RouteHandler = Callable[["Call"], Awaitable[HttpResponse]]


class Access(enum.Enum):
    """Who may ask."""

    ANYBODY = "anybody"
    #: whoever sent a token; what it may see is decided by the core
    NODE = "node"


@dataclass(frozen=True)
class Route:
    """A method, a path template and what belongs to it."""

    method: str
    #: parts in braces are parameters, one path segment each
    path: str
    handler: RouteHandler
    summary: str
    access: Access = Access.NODE
    #: struct of the query parameters
    query: type[Any] | None = None
    #: structs of which the JSON body is one
    bodies: tuple[type[Any], ...] = ()
    #: success status -> type of the JSON answer, several as a tuple, or None when the answer is no JSON
    answers: dict[int, Any] = field(default_factory=dict)
    #: media type of an answer that is no JSON
    media_type: str = "application/json"
    #: whether `#<tag>` parameters may stand beside those of `query`
    has_tag_filters: bool = False
    #: whether it may wait for others: then it is no running request, and has no time of its own
    may_wait: bool = False

    @property
    def segments(self) -> list[str]:
        return self.path.split("/")[1:]

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters in the path."""
        return [segment[1:-1] for segment in self.segments if segment.startswith("{")]

    @property
    def name(self) -> str:
        """A name of its own among all routes."""
        words = [segment.strip("{}.") for segment in self.segments]
        return "_".join([self.method.lower(), *(word.replace(".", "_") for word in words)])


T = TypeVar("T")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BEARER = "Bearer "


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was routed."""

    edge: Edge
    request: web.BaseRequest
    route: Route
    target: Target
    params: dict[str, str]

    @property
    def node(self) -> str:
        """Who asks, by its token; raises authentication_required or token_invalid."""
        header = self.request.headers.get("Authorization")
        if header is None:
            raise error("authentication_required")
        if not header.startswith(_BEARER):
            raise error("token_invalid")
        return self.edge.tokens.node_of(header[len(_BEARER) :])

    def arguments(self, type: type[T]) -> T:  # noqa: A002 - the domain's word
        """Return the query parameters as the struct of the route, each given once at most."""
        return read_arguments(self.target.query, type)

    async def body(self, type: type[T]) -> T:  # noqa: A002
        """Return the JSON body as the struct of the route."""
        value = parse_json(await self.read(self.edge.limits.small_body_bytes))
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as fault:
            raise error("body_invalid", reason=str(fault)) from fault

    async def read(self, limit: int) -> bytes:
        """Return the bytes of the body, at most `limit`, within the time a body may take."""
        self._check_media_type()
        length = self.request.content_length
        if length is not None and length > limit:
            raise error("request_too_large", limit=limit)
        self._invite_body()
        try:
            async with asyncio.timeout(self.edge.limits.body_s):
                return await self._gather(limit)
        except TimeoutError as fault:
            raise error("request_too_slow", seconds=self.edge.limits.body_s) from fault
        except (RequestPayloadError, web.HTTPException) as fault:
            raise error("http_malformed", reason="the body is not framed as its headers say") from fault

    async def _gather(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.request.content.iter_any():
            size += len(chunk)
            if size > limit:
                raise error("request_too_large", limit=limit)
            chunks.append(chunk)
        return b"".join(chunks)

    def _check_media_type(self) -> None:
        headers = self.request.headers
        media_type = headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise error("media_type_unsupported", media_type=media_type[:80])
        encoding = headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            raise error("media_type_unsupported", media_type=f"content-encoding {encoding[:40]}")

    def _invite_body(self) -> None:
        expects = self.request.headers.get("Expect", "").lower() == "100-continue"
        if expects and self.request.transport is not None:
            self.request.transport.write(_CONTINUE)


def read_arguments(query: Iterable[tuple[str, str]], type: type[T]) -> T:  # noqa: A002
    """Return query parameters as a struct; unknown and repeated ones are refused."""
    fields = {field.encode_name for field in msgspec.structs.fields(type)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in query:
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


@dataclass(frozen=True, slots=True)
class Found:
    """A route and the values of its path's parameters."""

    route: Route
    params: dict[str, str]


class Router:
    """Finds routes in a table."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length: dict[int, list[Route]] = {}
        for route in routes:
            self._by_length.setdefault(len(route.segments), []).append(route)
        for same in self._by_length.values():
            same.sort(key=_parameters)

    def find(self, method: str, segments: Sequence[str]) -> Found:
        """Return the route, or raise route_unknown or method_not_allowed."""
        wanted = "GET" if method == "HEAD" else method
        path: str | None = None
        allowed: list[str] = []
        for route in self._by_length.get(len(segments), ()):
            params = _match_route(route, segments)
            if params is None:
                continue
            if route.method == wanted:
                return Found(route, params)
            path = path or route.path
            if route.path == path:
                allowed.append(route.method)
        if path is None:
            raise error("route_unknown", path="/" + "/".join(segments)[:200])
        raise error("method_not_allowed", method=method[:20], allowed=", ".join(allowed))


def _parameters(route: Route) -> int:
    return sum(segment.startswith("{") for segment in route.segments)


def _match_route(route: Route, segments: Sequence[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for pattern, segment in zip(route.segments, segments, strict=True):
        if pattern.startswith("{"):
            if not segment and pattern != "{d}":
                return None
            params[pattern[1:-1]] = segment
        elif pattern != segment:
            return None
    return params
