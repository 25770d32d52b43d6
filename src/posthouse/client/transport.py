"""Reaching a relay: one HTTP session with TLS, and failures told as what they are.

Certificates are always verified. A refused connection, a name that does not resolve, a timeout and a certificate that
cannot be believed are told apart, because a person has to do something else about each of them.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from posthouse.client.options import ClientOptions
from posthouse.client.relay_url import RelayUrl
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MIB
from posthouse.version import __version__

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
        with telling_failures(self.url.origin):
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
def telling_failures(origin: str) -> Iterator[None]:
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
