"""HTTP and WebSocket access to one relay: options, TLS, the shared session, and authenticated requests.

Certificates are always verified. A refused connection, an unknown host, a timeout and an untrusted certificate
become different errors, because the remedy differs. Requests are sent as this node: the token is fetched at first
use and renewed when the relay rejects it. The relay's key is checked before anything is signed for it. Response
bodies are bounded, so a relay cannot make a client hold more than the largest page.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from posthouse.client.failures import error_from
from posthouse.client.relay_url import RelayUrl
from posthouse.client.trust.signing import Signer
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MIB, STREAM_BUFFER_BYTES, STREAM_BUFFER_EVENTS
from posthouse.version import __version__


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client behaves; the defaults suit an agent."""

    #: check id and signature of every event received
    is_verifying: bool = True
    #: file with the certificates of authorities to believe besides the system's
    tls_ca: Path | None = None
    #: speak to another machine without TLS; only inside a network that is trusted
    allow_plain: bool = False
    #: time for one attempt to connect and authenticate
    connect_timeout_s: float = 10.0
    #: time for one HTTP request
    request_timeout_s: float = 30.0
    #: time a publish waits for its answer, over reconnects and retries
    publish_timeout_s: float = 60.0
    #: longest wait between two attempts to reconnect
    reconnect_most_s: float = 30.0
    #: events sent and not answered; publish waits beyond it
    in_flight_events: int = 1_000
    #: bytes of events sent and not answered
    in_flight_bytes: int = 8 * MIB
    #: events a subscription holds for its reader; beyond it the relay is asked again later
    buffer_events: int = STREAM_BUFFER_EVENTS
    #: bytes of events a subscription holds
    buffer_bytes: int = STREAM_BUFFER_BYTES
    #: time between pings of a silent connection, to notice that it is gone
    heartbeat_s: float = 30.0


MAX_FRAME_BYTES = 16 * MIB  # far above what a relay sends at once, far below what would hurt


class Transport:
    """The way to one relay; opened at first use, inside a running loop."""

    def __init__(self, url: RelayUrl, options: ClientOptions) -> None:
        self.url = url
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session."""
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls(), limit=16)
            timeout = aiohttp.ClientTimeout(
                total=self._options.request_timeout_s, sock_connect=self._options.connect_timeout_s
            )
            headers = {"User-Agent": f"posthouse/{__version__}"}
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)
        return self._session

    async def open_stream(self) -> aiohttp.ClientWebSocketResponse[bool]:
        """Open the WebSocket; the caller bounds the time."""
        with translate_network_errors(self.url.origin):
            return await self.session.ws_connect(
                self.url.stream,
                max_msg_size=MAX_FRAME_BYTES,
                heartbeat=self._options.heartbeat_s,
                compress=0,
            )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _tls(self) -> ssl.SSLContext | bool:
        if not self.url.is_tls:
            return True
        context = ssl.create_default_context()
        if self._options.tls_ca is not None:
            try:
                context.load_verify_locations(self._options.tls_ca)
            except (OSError, ssl.SSLError) as fault:
                reason = f"{self._options.tls_ca} cannot be used: {fault}"
                raise error("relay_certificate_refused", relay=self.url.origin, reason=reason) from fault
        return context


@contextmanager
def translate_network_errors(origin: str) -> Iterator[None]:
    """Turn what the network did into an error with a code."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as failure:
        reason = getattr(failure.certificate_error, "verify_message", None) or str(failure.certificate_error)
        raise error("relay_certificate_refused", relay=origin, reason=reason) from failure
    except aiohttp.WSServerHandshakeError as failure:
        raise _refused_upgrade(origin, failure) from failure
    except TimeoutError as failure:
        raise error("relay_unreachable", relay=origin, reason="it did not answer in time") from failure
    except (aiohttp.ClientError, OSError) as failure:
        raise error("relay_unreachable", relay=origin, reason=_reason(failure)) from failure


def _refused_upgrade(origin: str, failure: aiohttp.WSServerHandshakeError) -> PosthouseError:
    if failure.status == 429 or failure.status >= 500:  # too many connections, stopping, or a proxy without its relay
        return error("relay_unreachable", relay=origin, reason=f"it takes no connection now ({failure.status})")
    return error("answer_invalid", relay=origin, reason=f"{failure.status} to the request for a stream")


def _reason(failure: BaseException) -> str:
    cause = failure.os_error if isinstance(failure, aiohttp.ClientConnectorError) else failure
    if isinstance(cause, OSError) and (cause.errno or 0) > 0:
        return os.strerror(int(cause.errno or 0))
    return str(failure) or type(failure).__name__


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
        with translate_network_errors(self.origin):
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
