"""One call of a route: the decoded path and parameters, the body within its bounds, and who asks.

Everything a handler reads of a request it reads here, so everything is bounded and checked in one place: sizes, times,
media type, strict JSON, unknown fields and parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from posthouse.model.errors import error
from posthouse.model.strict_json import parse_json
from posthouse.relay.edge import Edge
from posthouse.relay.http.route import Route
from posthouse.relay.http.target import Target

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
