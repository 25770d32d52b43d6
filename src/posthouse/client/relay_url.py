"""Addresses of relays, and invites, which are an address with a mesh, the relay's key and a one-time code.

A relay is named by its origin in the http form: `ws://` and `http://` mean the same relay, and so do `wss://` and
`https://`. Pins are kept under the origin. A bare HOST:PORT means TLS, except on this machine. Another machine
without TLS is refused, because tokens and content would travel in the clear.

    posthouse://HOST:PORT/MESH?relay=<relay node id>&code=<one-time>

An invite carries the relay's node id so that the code is shown only to the relay that issued it. If you change the
invite: 1. the relay that writes it, 2. docs/protocol.md, 3. the examples.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import validate_mesh_name, validate_node_id

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
    host, port = _host_and_port(parts, text)
    url = RelayUrl(scheme, host, port or _PORTS[scheme])
    if not url.is_tls and not allow_plain and not is_loopback(host):
        raise error("relay_plain", relay=url.origin)
    return url


def relay_at(authority: str) -> RelayUrl:
    """Return the relay at HOST:PORT: with TLS, except on this machine."""
    host, port = _host_and_port(urlsplit(f"//{authority}"), authority)
    return RelayUrl("http" if is_loopback(host) else "https", host, port or DEFAULT_PORT)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine for certain."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_and_port(parts: SplitResult, text: str) -> tuple[str, int | None]:
    try:
        host, port = parts.hostname, parts.port
    except ValueError as fault:
        raise error("relay_url_invalid", url=text, reason=str(fault)) from fault
    if not host:
        raise error("relay_url_invalid", url=text, reason="it names no host")
    if parts.username is not None or parts.query or parts.fragment or parts.path.rstrip("/"):
        raise error("relay_url_invalid", url=text, reason="it has more than scheme, host and port")
    return host, port


SCHEME = "posthouse"


@dataclass(frozen=True, slots=True)
class Invite:
    """What an invite says."""

    url: RelayUrl
    mesh: str
    #: node id of the relay
    relay: str
    #: a secret: who has it can join
    code: str = field(repr=False)

    def __str__(self) -> str:
        query = urlencode({"relay": self.relay, "code": self.code}, safe=":")
        return f"{SCHEME}://{self.url.authority}/{self.mesh}?{query}"


def parse_invite(text: str) -> Invite:
    """Return the invite in a string, or raise invite_malformed; the code never shows in the error."""
    try:
        parts = urlsplit(text.strip())
        fields = dict(parse_qsl(parts.query, strict_parsing=True, max_num_fields=2)) if parts.query else {}
    except ValueError:
        raise error("invite_malformed", reason="it is not a URL with two parameters") from None
    if parts.scheme != SCHEME:
        raise error("invite_malformed", reason=f"it does not begin with {SCHEME}://")
    if set(fields) != {"relay", "code"}:
        raise error("invite_malformed", reason="it has not the parameters relay and code")
    try:
        url = relay_at(parts.netloc)
        mesh = validate_mesh_name(parts.path.removeprefix("/"))
        relay = validate_node_id(fields["relay"])
    except PosthouseError as fault:
        raise error("invite_malformed", reason=str(fault)) from fault
    return Invite(url, mesh, relay, fields["code"])
