"""A routed request, as its handler sees it: parameters, body, and permission to wait.

Handlers read requests only through their Call, so that sizes, times, media type, strict JSON and unknown fields are
checked in one place. RequestSlots bounds how many requests run at once. A handler that waits for others gives its slot
back meanwhile; a WaitLimit bounds how many handlers may wait. A request whose body is still arriving uses no slot;
UnfinishedBodies bounds those per address.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from posthouse.http.router import Route, Target
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import KIB
from posthouse.model.strict_json import convert_with_ns, parse_json

T = TypeVar("T")
ContextT = TypeVar("ContextT")
_STRANGER_HINT = "Authenticate first: a request with a token may be larger. Or send fewer events per request."
_FREE_BYTES = 4 * KIB  # of a stranger's body are not counted: enough for a login, which large bodies cannot keep out
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
    #: of a request without authentication; None: as with it
    stranger_bytes: int | None = None


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


class UnfinishedBodies:
    """Counts the requests whose body has not arrived completely, per address, and the bytes of strangers in them.

    Such a request uses no slot, so slow clients cannot block fast ones.
    """

    def __init__(self, max_per_address: int | None, max_stranger_bytes: int | None, full_code: str) -> None:
        self._max_per_address = max_per_address
        self._max_stranger_bytes = max_stranger_bytes
        self._full_code = full_code
        self._at: Counter[str] = Counter()
        self._stranger_bytes = 0

    @contextmanager
    def enter(self, address: str | None) -> Iterator[None]:
        """Count one more request of an address while the block runs, or raise the code for too many."""
        if address is None:
            yield
            return
        if self._max_per_address is not None and self._at[address] >= self._max_per_address:
            raise error(self._full_code, limit=self._max_per_address)
        self._at[address] += 1
        try:
            yield
        finally:
            self._at[address] -= 1
            if not self._at[address]:
                del self._at[address]

    def hold(self, size: int) -> None:
        """Count bytes of a stranger, or raise the code for too many."""
        if self._max_stranger_bytes is not None and self._stranger_bytes + size > self._max_stranger_bytes:
            raise error(self._full_code, limit=sum(self._at.values()))
        self._stranger_bytes += size

    def release(self, size: int) -> None:
        """Stop counting bytes of a stranger."""
        self._stranger_bytes -= size


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
    request: BaseRequest
    route: Route[Any]
    target: Target
    #: values of the path parameters
    params: dict[str, str]
    limits: BodyLimits
    slots: RequestSlots
    bodies: UnfinishedBodies
    #: the address that limits count the request for; None: nothing is counted
    address: str | None

    @property
    def is_stranger(self) -> bool:
        """Whether the caller is unknown, so that small limits apply; a server that serves strangers overrides it."""
        return False

    def arguments(self, type: type[T]) -> T:  # noqa: A002 - the domain's word
        """Return the query parameters as a struct; unknown and repeated ones are refused."""
        return read_arguments(self.target.query, type)

    async def body(self, type: type[T]) -> T:  # noqa: A002
        """Return the JSON body as a struct."""
        value = parse_json(await self.read(self.limits.max_bytes))
        try:
            return convert_with_ns(value, type)
        except msgspec.ValidationError as fault:
            raise error("body_invalid", reason=str(fault)) from fault

    async def read(self, max_bytes: int) -> bytes:
        """Return the bytes of the body, at most `max_bytes`, received within the time for bodies."""
        request = self.request
        if self.limits.stranger_bytes is not None and self.is_stranger:
            max_bytes = min(max_bytes, self.limits.stranger_bytes)
        if self.limits.requires_json:
            _check_media_type(request)
        length = request.content_length
        if length is not None and length > max_bytes:
            raise self._too_large(max_bytes)
        try:
            if request.content.is_eof():  # it arrived together with the headers, as short bodies do
                return self._check_size(request.content.read_nowait(), max_bytes)
            _invite_body(request)
            return await self._receive(max_bytes)
        except TimeoutError as fault:
            raise error("request_too_slow", seconds=self.limits.timeout_s) from fault
        except (RequestPayloadError, HTTPException) as fault:
            raise error("http_malformed", reason="the body is not framed as its headers say") from fault

    async def _receive(self, max_bytes: int) -> bytes:
        """Return a body that is still arriving; meanwhile the request has no slot."""
        has_slot = not self.route.may_wait
        with self.slots.release() if has_slot else nullcontext(), self.bodies.enter(self.address):
            async with asyncio.timeout(self.limits.timeout_s):
                data = await self._gather(max_bytes)
        if has_slot:
            self.slots.check()
        return data

    @contextmanager
    def waiting(self, limit: WaitLimit) -> Iterator[None]:
        """Give the request's slot back while it waits, within a limit for such waits."""
        with limit.enter(), self.slots.release():
            yield

    async def _gather(self, max_bytes: int) -> bytes:
        chunks: list[bytes] = []
        size = held = 0
        is_stranger = self.is_stranger
        try:
            async for chunk in self.request.content.iter_any():
                size += len(chunk)
                if size > max_bytes:
                    raise self._too_large(max_bytes)
                if is_stranger and size > _FREE_BYTES:
                    self.bodies.hold(size - _FREE_BYTES - held)
                    held = size - _FREE_BYTES
                chunks.append(chunk)
        finally:
            self.bodies.release(held)
        return b"".join(chunks)

    def _check_size(self, data: bytes, max_bytes: int) -> bytes:
        if len(data) > max_bytes:
            raise self._too_large(max_bytes)
        return data

    def _too_large(self, max_bytes: int) -> PosthouseError:
        is_small = max_bytes == self.limits.stranger_bytes
        return error(
            "request_too_large", limit=max_bytes, hint=_STRANGER_HINT if is_small else self.limits.too_large_hint
        )


def _check_media_type(request: BaseRequest) -> None:
    headers = request.headers
    media_type = headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise error("media_type_unsupported", media_type=media_type[:80])
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise error("media_type_unsupported", media_type=f"content-encoding {encoding[:40]}")


def _invite_body(request: BaseRequest) -> None:
    """Answer `Expect: 100-continue`, only for a handler that reads the body."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(_CONTINUE)


def read_arguments(query: Iterable[tuple[str, str]], type: type[T]) -> T:  # noqa: A002
    """Return query parameters as a struct; unknown and repeated ones are refused."""
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(type)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in query:
        if name not in fields:
            raise error("parameter_unknown", name=name[:80])
        if name in values:
            raise error("parameter_invalid", name=name, reason="it is given twice")
        values[name] = value
    try:
        arguments = msgspec.convert(values, type, strict=False)
    except msgspec.ValidationError as fault:
        reason, _, path = str(fault).partition(" - at `$.")
        raise error("parameter_invalid", name=path.strip("`") or "query", reason=reason) from fault
    for name in values:
        if getattr(arguments, fields[name]) is None:  # msgspec reads the text null as None
            raise error("parameter_invalid", name=name, reason="null is not a value; leave the parameter out")
    return arguments
