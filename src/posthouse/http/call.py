"""A routed request, as its handler sees it: parameters, body, and permission to wait.

Handlers read requests only through their Call, so that sizes, times, media type, strict JSON and unknown fields are
checked in one place. RequestSlots bounds how many requests run at once; a handler that waits for others gives its
slot back meanwhile, and a WaitLimit bounds how many may do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from posthouse.http.router import Route, Target
from posthouse.model.errors import PosthouseError, error
from posthouse.model.strict_json import parse_json

T = TypeVar("T")
ContextT = TypeVar("ContextT")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds of a request body."""

    max_bytes: int
    #: from the first byte to the last
    timeout_s: float
    #: refuse other media types than JSON; False for servers that are called by hand
    requires_json: bool = True
    too_large_hint: str | None = None


class RequestSlots:
    """Counts the requests that a server answers at this moment."""

    def __init__(self, max_running: int, full_code: str) -> None:
        self._max_running = max_running
        self._full_code = full_code
        self.running = 0

    def check(self) -> None:
        """Raise the server's code for overload if more requests run than are allowed."""
        if self.running > self._max_running:
            raise error(self._full_code, limit=self._max_running)

    @contextmanager
    def release(self) -> Iterator[None]:
        """Do not count the current request while it waits."""
        self.running -= 1
        try:
            yield
        finally:
            self.running += 1


class WaitLimit:
    """Counts the requests that wait for one kind of thing, and refuses more than `max_count`."""

    def __init__(self, max_count: int, full_code: str) -> None:
        self._max_count = max_count
        self._full_code = full_code
        self.count = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count one more while the block runs, or raise the code for too many."""
        if self.count >= self._max_count:
            raise error(self._full_code, limit=self._max_count)
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


@dataclass(slots=True)
class Call(Generic[ContextT]):
    """A request that was admitted and routed."""

    context: ContextT
    request: web.BaseRequest
    route: Route[Any]
    target: Target
    #: values of the path parameters
    params: dict[str, str]
    limits: BodyLimits
    slots: RequestSlots

    def arguments(self, type: type[T]) -> T:  # noqa: A002 - the domain's word
        """Return the query parameters as a struct; unknown and repeated ones are refused."""
        return read_arguments(self.target.query, type)

    async def body(self, type: type[T]) -> T:  # noqa: A002
        """Return the JSON body as a struct."""
        value = parse_json(await self.read(self.limits.max_bytes))
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as fault:
            raise error("body_invalid", reason=str(fault)) from fault

    async def read(self, max_bytes: int) -> bytes:
        """Return the bytes of the body, at most `max_bytes`, received within the time for bodies."""
        request = self.request
        if self.limits.requires_json:
            _check_media_type(request)
        length = request.content_length
        if length is not None and length > max_bytes:
            raise self._too_large(max_bytes)
        try:
            if request.content.is_eof():  # it arrived together with the headers, as short bodies do
                return self._check_size(request.content.read_nowait(), max_bytes)
            _invite_body(request)
            async with asyncio.timeout(self.limits.timeout_s):
                return await self._gather(max_bytes)
        except TimeoutError as fault:
            raise error("request_too_slow", seconds=self.limits.timeout_s) from fault
        except (RequestPayloadError, web.HTTPException) as fault:
            raise error("http_malformed", reason="the body is not framed as its headers say") from fault

    @contextmanager
    def waiting(self, limit: WaitLimit) -> Iterator[None]:
        """Give the request's slot back while it waits, within a limit for such waits."""
        with limit.enter(), self.slots.release():
            yield

    async def _gather(self, max_bytes: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.request.content.iter_any():
            size += len(chunk)
            if size > max_bytes:
                raise self._too_large(max_bytes)
            chunks.append(chunk)
        return b"".join(chunks)

    def _check_size(self, data: bytes, max_bytes: int) -> bytes:
        if len(data) > max_bytes:
            raise self._too_large(max_bytes)
        return data

    def _too_large(self, max_bytes: int) -> PosthouseError:
        return error("request_too_large", limit=max_bytes, hint=self.limits.too_large_hint)


def _check_media_type(request: web.BaseRequest) -> None:
    headers = request.headers
    media_type = headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise error("media_type_unsupported", media_type=media_type[:80])
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise error("media_type_unsupported", media_type=f"content-encoding {encoding[:40]}")


def _invite_body(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`; only a handler that reads the body does so."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(_CONTINUE)


def read_arguments(query: Iterable[tuple[str, str]], type: type[T]) -> T:  # noqa: A002
    """Return query parameters as a struct; unknown and repeated ones are refused."""
    fields = {field.encode_name for field in msgspec.structs.fields(type)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in query:
        if name not in fields:
            raise error("parameter_unknown", name=name[:80])
        if name in values:
            raise error("parameter_invalid", name=name, reason="it is given twice")
        values[name] = value
    try:
        return msgspec.convert(values, type, strict=False)
    except msgspec.ValidationError as fault:
        reason, _, path = str(fault).partition(" - at `$.")
        raise error("parameter_invalid", name=path.strip("`") or "query", reason=reason) from fault
