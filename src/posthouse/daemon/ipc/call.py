"""One call of a route: its parameters and its body, bounded and checked in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from posthouse.answer import Answer
from posthouse.model.errors import error
from posthouse.model.strict_json import parse_json

if TYPE_CHECKING:
    from posthouse.daemon.daemon import Daemon
    from posthouse.daemon.ipc.service import Service

T = TypeVar("T")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Call(NamedTuple):
    """A request that was let in and routed."""

    daemon: Daemon
    service: Service
    request: web.BaseRequest
    #: the id in the path, if the route has one
    id: str

    def arguments(self, type: type[T]) -> T:  # noqa: A002 - the domain's word
        """Return the query parameters as the struct of the route, each given once at most."""
        return read_arguments(self.request, type)

    async def body(self, type: type[T]) -> T:  # noqa: A002
        """Return the JSON body as the struct of the route."""
        value = parse_json(await self._read())
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as fault:
            raise error("body_invalid", reason=str(fault)) from fault

    async def _read(self) -> bytes:
        limits = self.daemon.settings.limits
        request = self.request
        if request.content_length is not None and request.content_length > limits.body_bytes:
            raise error("request_too_large", limit=limits.body_bytes, hint="A message has at most 48 KiB.")
        if request.content.is_eof():  # it came with its headers, as short ones do
            return _check_size(request.content.read_nowait(), limits.body_bytes)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(_CONTINUE)
        try:
            async with asyncio.timeout(limits.body_s):
                return await _gather(request, limits.body_bytes)
        except TimeoutError as fault:
            raise error("request_too_slow", seconds=limits.body_s) from fault
        except (RequestPayloadError, web.HTTPException) as fault:
            raise error("http_malformed", reason="the body is not framed as its headers say") from fault


class Route(NamedTuple):
    """What answers a method of a path."""

    handler: Callable[[Call], Awaitable[Answer]]


def _check_size(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise error("request_too_large", limit=limit, hint="A message has at most 48 KiB.")
    return data


async def _gather(request: web.BaseRequest, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > limit:
            raise error("request_too_large", limit=limit, hint="A message has at most 48 KiB.")
        chunks.append(chunk)
    return b"".join(chunks)


def read_arguments(request: web.BaseRequest, type: type[T]) -> T:  # noqa: A002
    """Return query parameters as a struct; unknown and repeated ones are refused."""
    fields = {field.encode_name for field in msgspec.structs.fields(type)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in request.query.items():
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
