"""HTTP and WebSocket access to one relay: options, TLS, the shared session, and authenticated requests.

Certificates are always verified. A refused connection, an unknown host, a timeout and an untrusted certificate
become different errors, because the remedy differs. Requests carry this node's token, which the client fetches at first
use and again when the relay rejects it. The relay's key is checked before this node signs anything for it. The Date of
each response shows how far this clock is from the relay's; a login that fails because of it raises clock_differs.
Response bodies are bounded, so a relay cannot fill the client's memory, and every body is decoded into its type here: a
malformed body raises answer_invalid.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from posthouse.client.failures import error_from
from posthouse.client.relay_url import RelayUrl
from posthouse.client.trust.signing import Signer
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, MIB, SECOND_NS, STREAM_BUFFER_BYTES, STREAM_BUFFER_EVENTS
from posthouse.tracing import Tracer
from posthouse.version import __version__


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options of a client; the defaults suit an agent."""

    #: verify id and signature of every event received
    is_verifying: bool = True
    #: file with certificates of authorities to trust besides the system's
    tls_ca: Path | None = None
    #: connect to another machine without TLS; only inside a trusted network
    allow_plain: bool = False
    #: for one attempt to connect and authenticate
    connect_timeout_s: float = 10.0
    #: for one HTTP request
    request_timeout_s: float = 30.0
    #: for the answer to a publish, over reconnects and retries
    publish_timeout_s: float = 60.0
    #: longest delay between two attempts to reconnect
    reconnect_most_s: float = 30.0
    #: bound of the events sent and not answered; beyond it a publish waits
    in_flight_events: int = 1_000
    #: bound of their bytes
    in_flight_bytes: int = 8 * MIB
    #: bound of the events that a subscription buffers for its reader; beyond it the relay pauses
    buffer_events: int = STREAM_BUFFER_EVENTS
    #: bound of their bytes
    buffer_bytes: int = STREAM_BUFFER_BYTES
    #: between pings of a silent connection, which detect that it is dead
    heartbeat_s: float = 30.0
    #: records the steps of messages; None: they are not traced here
    tracer: Tracer | None = None


_PROOF_REFUSED_S = CREATED_AT_MAX_AHEAD_NS // SECOND_NS - 2  # a Date has whole seconds
MAX_FRAME_BYTES = 16 * MIB  # far above a relay's frames, far below what would exhaust memory


CHANGE_S = 4.0  # a client that has another address leaves a silent one after this time
#: statuses after which the client uses another address of the same relay
_ELSEWHERE = frozenset({"relay_unreachable", "relay_behind", "relay_stopping", "store_unavailable"})


class Transport:
    """The HTTP session to one relay, opened at first use inside a running loop."""

    def __init__(
        self, url: RelayUrl, options: ClientOptions, clock: Clock | None = None, certificate: str | None = None
    ) -> None:
        self.url = url
        self._options = options
        #: fingerprint of the one certificate to accept; None: one that an authority has signed
        self._certificate = certificate
        self._clock = clock or system_clock()
        #: how far this clock is ahead of the relay's, in whole seconds, as of the last response with a date
        self.clock_difference_s: int | None = None
        self._session: aiohttp.ClientSession | None = None
        self._addresses = url.addresses
        self._present = 0

    @property
    def address(self) -> RelayUrl:
        """The address that is used now, of those that the relay has."""
        return self._addresses[self._present]

    @property
    def others(self) -> int:
        """How many addresses there are besides the current one."""
        return len(self._addresses) - 1

    def use_next_address(self, failed: RelayUrl) -> None:
        """Use the next address, because the relay cannot be reached, or does not serve, at this one."""
        if failed is self.address:
            self._present = (self._present + 1) % len(self._addresses)

    @contextmanager
    def reaching(self) -> Iterator[RelayUrl]:
        """Yield the current address and raise failures of the network as errors; after one the next address is used."""
        address = self.address
        try:
            with translate_network_errors(address.origin):
                yield address
        except PosthouseError as failure:
            if failure.code in _ELSEWHERE:
                self.use_next_address(address)
            raise

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session, made at first use; raises client_closed after its end."""
        if self._session is not None and self._session.closed:
            raise error("client_closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls(), limit=16)
            timeout = aiohttp.ClientTimeout(
                total=self._options.request_timeout_s, sock_connect=self._options.connect_timeout_s
            )
            headers = {"User-Agent": f"posthouse/{__version__}"}
            tracing = aiohttp.TraceConfig()
            tracing.on_request_end.append(self._note_time)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=headers, trace_configs=[tracing]
            )
        return self._session

    def explain_refusal(self, refusal: PosthouseError) -> PosthouseError:
        """Return clock_differs for a proof that the relay refused because of its time; else the refusal itself."""
        difference_s = self.clock_difference_s
        if refusal.code != "proof_invalid" or difference_s is None or abs(difference_s) < _PROOF_REFUSED_S:
            return refusal
        return error("clock_differs", relay=self.url.origin, seconds=difference_s)

    async def _note_time(self, _session: object, _context: object, ended: aiohttp.TraceRequestEndParams) -> None:
        with suppress(ValueError, KeyError):  # no Date, or an invalid one
            relay_s = parsedate_to_datetime(ended.response.headers["Date"]).timestamp()
            self.clock_difference_s = self._clock.wall_ns() // SECOND_NS - round(relay_s)

    async def open_stream(self) -> aiohttp.ClientWebSocketResponse[bool]:
        """Open the WebSocket of the stream; the caller sets the timeout and translates failures."""
        heartbeat_s = self._options.heartbeat_s
        return await self.session.ws_connect(
            self.address.stream,
            max_msg_size=MAX_FRAME_BYTES,
            heartbeat=min(heartbeat_s, CHANGE_S) if self.others else heartbeat_s,
            compress=0,
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _tls(self) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
        if not self.url.is_tls:
            return True
        if self._certificate is not None:
            return aiohttp.Fingerprint(bytes.fromhex(self._certificate.removeprefix("sha256:")))
        context = ssl.create_default_context()
        if self._options.tls_ca is not None:
            try:
                context.load_verify_locations(self._options.tls_ca)
            except (OSError, ssl.SSLError) as unusable:
                reason = f"{self._options.tls_ca} cannot be used: {unusable}"
                raise error("relay_certificate_refused", relay=self.url.origin, reason=reason) from unusable
        return context


@contextmanager
def translate_network_errors(origin: str) -> Iterator[None]:
    """Raise the exceptions of the network as errors with a code."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as failure:
        reason = getattr(failure.certificate_error, "verify_message", None) or str(failure.certificate_error)
        raise error("relay_certificate_refused", relay=origin, reason=reason) from failure
    except aiohttp.ServerFingerprintMismatch as failure:
        reason = "its certificate is not the one that the invite or the pins name"
        raise error("relay_certificate_refused", relay=origin, reason=reason) from failure
    except aiohttp.WSServerHandshakeError as failure:
        raise _refused_upgrade(origin, failure) from failure
    except TimeoutError as failure:
        raise error("relay_unreachable", relay=origin, reason="it did not answer in time") from failure
    except (aiohttp.ClientError, OSError) as failure:
        raise error("relay_unreachable", relay=origin, reason=_reason(failure)) from failure


def _refused_upgrade(origin: str, failure: aiohttp.WSServerHandshakeError) -> PosthouseError:
    if failure.status == 429 or failure.status >= 500:  # too many connections, stopping, or a proxy without its relay
        return error("relay_unreachable", relay=origin, reason=f"it accepts no connection now ({failure.status})")
    return error("answer_invalid", relay=origin, reason=f"status {failure.status} to the request for a stream")


def _reason(failure: BaseException) -> str:
    cause = failure.os_error if isinstance(failure, aiohttp.ClientConnectorError) else failure
    if isinstance(cause, OSError) and (cause.errno or 0) > 0:
        return os.strerror(int(cause.errno or 0))
    return str(failure) or type(failure).__name__


_LINES_SILENCE_S = 45.0  # the relay sends an empty line every 10 s while it waits
_CHUNKS_SILENCE_S = 600.0  # a relay prepares a large body before it sends the first byte
MAX_ANSWER_BYTES = 128 * MIB  # a page of 500 of the largest events has about 70
Parameters = Mapping[str, str | int | None]
T = TypeVar("T")


class _Challenge(msgspec.Struct):
    relay: str
    challenge: str


class _Token(msgspec.Struct):
    token: str


class Requests:
    """HTTP requests of one node to one relay."""

    def __init__(self, transport: Transport, signer: Signer, check_relay: Callable[[str], None]) -> None:
        self._transport = transport
        self._signer = signer
        self._check_relay = check_relay
        self._token: str | None = None
        self._authenticating = asyncio.Lock()

    @property
    def origin(self) -> str:
        return self._transport.url.origin

    @property
    def url(self) -> RelayUrl:
        """All addresses of the relay."""
        return self._transport.url

    async def get(self, path: str, parameters: Parameters | None = None, *, token: str | None = None) -> bytes:
        """Return the body of a GET; without another token it is made as this node."""
        if token is not None:
            return await self._send("GET", path, parameters, None, token)
        return await self._as_node("GET", path, parameters, None)

    async def get_as(self, type: type[T], path: str, parameters: Parameters | None = None) -> T:  # noqa: A002
        """Return the body of a GET as a type."""
        return self.decode(await self.get(path, parameters), type)

    async def post_as(self, type: type[T], path: str, body: Any) -> T:  # noqa: A002 - as in get_as
        """Return the body of a POST as a type; no body is an empty object."""
        return self.decode(await self._as_node("POST", path, None, body) or b"{}", type)

    async def post_lines(self, path: str, body: Any) -> AsyncGenerator[bytes]:
        """Yield the lines of the body of a POST as they arrive, without empty ones.

        Raises relay_unreachable if the body ends early or the relay is silent for too long.
        """
        token = await self.token()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_LINES_SILENCE_S)
        with self._transport.reaching() as address:
            async with self._transport.session.post(
                _address(address.origin, path, None),
                data=msgspec.json.encode(body),
                headers=headers,
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                if response.status == 401:
                    self._token = None if self._token == token else self._token
                if response.status != 200:
                    self._raise_for_status(response, await _read(response, self.origin))
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > MAX_FRAME_BYTES:
                        raise error("answer_invalid", relay=self.origin, reason="a line without an end")
                    for line in filter(None, lines):
                        yield line

    async def get_chunks(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the body of a GET of any size in pieces as they arrive.

        Raises relay_unreachable if the body ends early or the relay is silent for too long.
        """
        token = await self.token()
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_CHUNKS_SILENCE_S)
        with self._transport.reaching() as address:
            async with self._transport.session.get(
                _address(address.origin, path, None),
                headers={"Authorization": f"Bearer {token}"},
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                if response.status == 401:
                    self._token = None if self._token == token else self._token
                if response.status != 200:
                    self._raise_for_status(response, await _read(response, self.origin))
                async for chunk in response.content.iter_any():
                    yield chunk

    async def delete(self, path: str, parameters: Parameters | None = None) -> None:
        """Send a DELETE; its body has no content."""
        await self._as_node("DELETE", path, parameters, None)

    async def send_anonymous(self, type: type[T], method: str, path: str, body: Any = None) -> T:  # noqa: A002
        """Return the body of a request without a token as a type."""
        return self.decode(await self._send(method, path, None, body, None), type)

    async def token(self) -> str:
        """Return the token of this node; the first call authenticates."""
        async with self._authenticating:
            if self._token is None:
                self._token = await self._authenticate()
            return self._token

    def decode(self, data: bytes, type: type[T]) -> T:  # noqa: A002 - as in get_as
        """Return a body as a type, or raise answer_invalid."""
        try:
            return msgspec.json.decode(data, type=type)
        except ValueError as invalid:
            raise error("answer_invalid", relay=self.origin, reason=str(invalid)) from invalid

    async def _as_node(self, method: str, path: str, parameters: Parameters | None, body: Any) -> bytes:
        token = await self.token()
        try:
            return await self._send(method, path, parameters, body, token)
        except PosthouseError as refusal:
            if refusal.code != "token_invalid":
                raise
        # the relay restarted or the token expired; it refused before it did anything, so a retry is safe
        self._token = None if self._token == token else self._token
        return await self._send(method, path, parameters, body, await self.token())

    async def _authenticate(self) -> str:
        try:
            return await self._answer_challenge()
        except PosthouseError as refusal:
            if refusal.code != "challenge_invalid":
                raise
        # the relay restarted or its clock was set after it had issued the challenge; a new one will do
        return await self._answer_challenge()

    async def _answer_challenge(self) -> str:
        node = {"pubkey": self._signer.key.node}
        given = await self.send_anonymous(_Challenge, "POST", "/v1/auth/challenge", node)
        self._check_relay(given.relay)
        proof = self._signer.prove(given.relay, ("challenge", given.challenge))
        return (await self.send_anonymous(_Token, "POST", "/v1/auth", {"event": proof})).token

    async def _send(self, method: str, path: str, parameters: Parameters | None, body: Any, token: str | None) -> bytes:
        """Send a request; if no connection can be made, try the other addresses of the relay, each once."""
        for _ in range(self._transport.others):
            try:
                return await self._send_once(method, path, parameters, body, token)
            except PosthouseError as failure:
                if not isinstance(failure.__cause__, aiohttp.ClientConnectorError):  # it may have been sent
                    raise
        return await self._send_once(method, path, parameters, body, token)

    async def _send_once(
        self, method: str, path: str, parameters: Parameters | None, body: Any, token: str | None
    ) -> bytes:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        encoded = None if body is None else msgspec.json.encode(body)
        if encoded is not None:
            headers["Content-Type"] = "application/json"
        with self._transport.reaching() as address:
            session, url = self._transport.session, _address(address.origin, path, parameters)
            async with session.request(method, url, data=encoded, headers=headers, allow_redirects=False) as response:
                data = await _read(response, self.origin)
                self._raise_for_status(response, data)
                return data

    def _raise_for_status(self, response: aiohttp.ClientResponse, data: bytes) -> None:
        if 200 <= response.status < 300:
            return
        if response.content_type != "application/problem+json":
            raise error("answer_invalid", relay=self.origin, reason=f"status {response.status} without a problem")
        raise self._transport.explain_refusal(error_from(self.decode(data, dict[str, Any]), self.origin))


def _address(origin: str, path: str, parameters: Parameters | None) -> URL:
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
