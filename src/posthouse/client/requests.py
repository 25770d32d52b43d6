"""HTTP requests to a relay, as this node: JSON in and out, a token got and renewed when it is needed.

A problem of the relay is raised as the error it was there. The relay's key is checked before anything is signed for
it. Answers are bounded; a relay cannot make a client hold more than the largest page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from posthouse.client.problems import error_from
from posthouse.client.signing import Signer
from posthouse.client.transport import Transport, telling_failures
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MIB

MAX_ANSWER_BYTES = 128 * MIB  # a page of 500 of the largest events has about 70


class Requests:
    """The HTTP side of a client."""

    def __init__(self, transport: Transport, signer: Signer, check_relay: Callable[[str], None]) -> None:
        self._transport = transport
        self._signer = signer
        self._check_relay = check_relay
        self._token: str | None = None
        self._authenticating = asyncio.Lock()

    @property
    def origin(self) -> str:
        return self._transport.url.origin

    async def get(self, path: str, parameters: Mapping[str, str | int | None] | None = None) -> bytes:
        """Return what a GET answers, as this node."""
        return await self._as_node("GET", path, parameters, None)

    async def post(self, path: str, body: Any) -> bytes:
        """Return what a POST answers, as this node."""
        return await self._as_node("POST", path, None, body)

    async def delete(self, path: str, parameters: Mapping[str, str | int | None] | None = None) -> bytes:
        """Return what a DELETE answers, as this node."""
        return await self._as_node("DELETE", path, parameters, None)

    async def send_anonymous(self, method: str, path: str, body: Any = None) -> bytes:
        """Return what a request without a token answers."""
        return await self._send(method, path, None, body, None)

    async def _as_node(
        self, method: str, path: str, parameters: Mapping[str, str | int | None] | None, body: Any
    ) -> bytes:
        token = await self.token()
        try:
            return await self._send(method, path, parameters, body, token)
        except PosthouseError as failure:
            if failure.code != "token_invalid":
                raise
        # the relay was restarted, or the hour is over; it refused before doing anything
        self._token = None if self._token == token else self._token
        return await self._send(method, path, parameters, body, await self.token())

    async def token(self) -> str:
        """Return the token of this node, got first if there is none."""
        async with self._authenticating:
            if self._token is None:
                self._token = await self._authenticate()
            return self._token

    async def _authenticate(self) -> str:
        given = self.decode(await self.send_anonymous("POST", "/v1/auth/challenge", {"pubkey": self._signer.key.node}))
        relay, challenge = _texts(given, self.origin, "relay", "challenge")
        self._check_relay(relay)
        proof = self._signer.prove(relay, ("challenge", challenge))
        answer = self.decode(await self.send_anonymous("POST", "/v1/auth", {"event": proof}))
        return _texts(answer, self.origin, "token")[0]

    def decode(self, data: bytes) -> Any:
        """Return an answer as plain JSON values."""
        try:
            return msgspec.json.decode(data)
        except ValueError as fault:
            raise error("answer_invalid", relay=self.origin, reason=str(fault)) from fault

    async def _send(
        self, method: str, path: str, parameters: Mapping[str, str | int | None] | None, body: Any, token: str | None
    ) -> bytes:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = None if body is None else msgspec.json.encode(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        with telling_failures(self.origin):
            session = self._transport.session
            async with session.request(
                method, _address(self.origin, path, parameters), data=data, headers=headers, allow_redirects=False
            ) as response:
                return self._judge(response, await _read(response, self.origin))

    def _judge(self, response: aiohttp.ClientResponse, data: bytes) -> bytes:
        if 200 <= response.status < 300:
            return data
        if response.content_type != "application/problem+json":
            raise error("answer_invalid", relay=self.origin, reason=f"status {response.status} without a problem")
        raise error_from(self.decode(data), self.origin)


def _address(origin: str, path: str, parameters: Mapping[str, str | int | None] | None) -> URL:
    given = [(name, str(value)) for name, value in (parameters or {}).items() if value is not None]
    query = f"?{urlencode(given, quote_via=quote, safe='')}" if given else ""
    return URL(f"{origin}{path}{query}", encoded=True)


async def _read(response: aiohttp.ClientResponse, origin: str) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise error("answer_invalid", relay=origin, reason=f"more than {MAX_ANSWER_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _texts(value: Any, origin: str, *names: str) -> list[str]:
    found = [value.get(name) for name in names] if isinstance(value, dict) else []
    if not found or not all(isinstance(each, str) for each in found):
        raise error("answer_invalid", relay=origin, reason=f"it lacks {' or '.join(names)}")
    return [str(each) for each in found]
