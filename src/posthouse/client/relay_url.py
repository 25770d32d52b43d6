"""The address of a relay: one origin, from which the HTTP and the WebSocket address follow.

`ws://` and `http://` mean the same relay, and so do `wss://` and `https://`; the origin, in the http form, is what pins
are kept under. A bare HOST:PORT means TLS, except on this machine. Without TLS another machine is refused: tokens
and content would travel in the clear.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from posthouse.model.errors import error

DEFAULT_PORT = 7420
DEFAULT_RELAY = f"http://127.0.0.1:{DEFAULT_PORT}"
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class RelayUrl:
    """Where a relay is reached."""

    #: http or https
    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """HOST:PORT, as in an invite."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """What names this relay, for people and in the pins."""
        return f"{self.scheme}://{self.authority}"

    @property
    def stream(self) -> str:
        """The address of the stream."""
        return f"{'wss' if self.is_tls else 'ws'}://{self.authority}/v1/stream"

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    def __str__(self) -> str:
        return self.origin


def parse_relay_url(text: str, *, allow_plain: bool = False) -> RelayUrl:
    """Return the relay a text names, or raise relay_url_invalid or relay_plain."""
    if "://" not in text:
        return relay_at(text)
    parts = urlsplit(text)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None:
        raise error("relay_url_invalid", url=text, reason="its scheme is none of http, https, ws and wss")
    host, port = _place(parts, text)
    url = RelayUrl(scheme, host, port or _PORTS[scheme])
    if not url.is_tls and not allow_plain and not is_loopback(host):
        raise error("relay_plain", relay=url.origin)
    return url


def relay_at(authority: str) -> RelayUrl:
    """Return the relay at HOST:PORT: with TLS, except on this machine."""
    host, port = _place(urlsplit(f"//{authority}"), authority)
    return RelayUrl("http" if is_loopback(host) else "https", host, port or DEFAULT_PORT)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine for certain."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _place(parts: SplitResult, text: str) -> tuple[str, int | None]:
    try:
        host, port = parts.hostname, parts.port
    except ValueError as fault:
        raise error("relay_url_invalid", url=text, reason=str(fault)) from fault
    if not host:
        raise error("relay_url_invalid", url=text, reason="it names no host")
    if parts.username is not None or parts.query or parts.fragment or parts.path.rstrip("/"):
        raise error("relay_url_invalid", url=text, reason="it has more than scheme, host and port")
    return host, port
