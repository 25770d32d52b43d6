"""Addresses of relays, and invites, which are an address with a mesh, the relay's key and a one-time code.

The origin in its http form identifies a relay: `ws://` and `http://` mean the same relay, and so do `wss://` and
`https://`. Pins are kept under the origin. A bare HOST:PORT means TLS, except on this machine. Another machine
without TLS is refused, because tokens and content would travel in the clear. Relays that share a store, and so a key,
are one relay with several addresses, separated by commas; the first one names it.

    posthouse://HOST:PORT[,HOST:PORT]/MESH?relay=<relay node id>&code=<one-time>[&tls=sha256:<64 hex digits>]

`tls` is the fingerprint of a certificate that no authority has signed: the client accepts this one and no other. An
invite carries the relay's node id so that a client sends the code only to the relay that issued it. If you change
the invite: 1. the relay that writes it, 2. docs/protocol.md, 3. the examples.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, urlencode, urlsplit

from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import validate_mesh_name, validate_node_id

DEFAULT_PORT = 7420
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class RelayUrl:
    """The address of a relay."""

    #: http or https
    scheme: str
    host: str
    port: int
    #: further addresses, used while this one cannot be reached
    others: tuple[RelayUrl, ...] = ()

    @property
    def addresses(self) -> tuple[RelayUrl, ...]:
        """All addresses of the relay, this one first."""
        return (self, *self.others)

    @property
    def authority(self) -> str:
        """HOST:PORT, as in an invite."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """The identity of this relay's address, for people and in the pins."""
        return f"{self.scheme}://{self.authority}"

    @property
    def stream(self) -> str:
        """The URL of the stream."""
        return f"{'wss' if self.is_tls else 'ws'}://{self.authority}/v1/stream"

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    def __str__(self) -> str:
        return ",".join([each.origin for each in self.addresses])


def parse_relay_url(text: str, *, allow_plain: bool = False) -> RelayUrl:
    """Return the address in a text, or the several ones of one relay; raise relay_url_invalid or relay_plain."""
    return _one_relay([_parse_one(part.strip(), allow_plain) for part in text.split(",")], text)


def relay_at(authorities: str) -> RelayUrl:
    """Return the address of HOST:PORT, or the several ones of one relay: with TLS, except on this machine."""
    return _one_relay([_relay_at(part.strip()) for part in authorities.split(",")], authorities)


def _one_relay(addresses: Sequence[RelayUrl], text: str) -> RelayUrl:
    first, *others = addresses
    if any(each.scheme != first.scheme for each in others):
        raise error("relay_url_invalid", url=text, reason="some of its addresses use TLS and some do not")
    return replace(first, others=tuple(others))


def _parse_one(text: str, allow_plain: bool) -> RelayUrl:
    if "://" not in text:
        return _relay_at(text)
    scheme = _SCHEMES.get(text.partition("://")[0].lower())
    if scheme is None:
        raise error("relay_url_invalid", url=text, reason="its scheme is not http, https, ws or wss")
    host, port = _host_and_port(text, text)
    url = RelayUrl(scheme, host, port or _PORTS[scheme])
    if not url.is_tls and not allow_plain and not is_loopback(host):
        raise error("relay_plain", relay=url.origin)
    return url


def _relay_at(authority: str) -> RelayUrl:
    host, port = _host_and_port(f"//{authority}", authority)
    return RelayUrl("http" if is_loopback(host) else "https", host, port or DEFAULT_PORT)


def is_loopback(host: str) -> bool:
    """Return True if a host is certainly this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_and_port(url: str, text: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as invalid:
        raise error("relay_url_invalid", url=text, reason=str(invalid)) from invalid
    if not host:
        raise error("relay_url_invalid", url=text, reason="it names no host")
    if parts.username is not None or parts.query or parts.fragment or parts.path.rstrip("/"):
        raise error("relay_url_invalid", url=text, reason="it has more than scheme, host and port")
    return host, port


SCHEME = "posthouse"
#: Scheme, authorities and the rest. Newer versions of urlsplit refuse several authorities if one has brackets.
_INVITE = re.compile(r"([a-z]+)://([^/?#]*)(.*)", re.DOTALL | re.IGNORECASE)
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Invite:
    """The content of an invite."""

    url: RelayUrl
    mesh: str
    #: node id of the relay
    relay: str
    #: a secret: anyone who has it can join
    code: str = field(repr=False)
    #: fingerprint of the relay's certificate; None: an authority must have signed it
    tls: str | None = None

    def __str__(self) -> str:
        fields = {"relay": self.relay, "code": self.code} | ({} if self.tls is None else {"tls": self.tls})
        query = urlencode(fields, safe=":")
        authorities = ",".join([each.authority for each in self.url.addresses])
        return f"{SCHEME}://{authorities}/{self.mesh}?{query}"


def parse_invite(text: str) -> Invite:
    """Return the invite in a text, or raise invite_malformed; the error never contains the code."""
    found = _INVITE.fullmatch(text.strip())
    if found is None or found[1].lower() != SCHEME:
        raise error("invite_malformed", reason=f"it does not begin with {SCHEME}://")
    try:
        parts = urlsplit(found[3])
        fields = dict(parse_qsl(parts.query, strict_parsing=True, max_num_fields=3)) if parts.query else {}
    except ValueError:
        raise error("invite_malformed", reason="it is not a URL with two or three parameters") from None
    if set(fields) - {"tls"} != {"relay", "code"}:
        raise error("invite_malformed", reason="its parameters are not relay, code and perhaps tls")
    tls = fields.get("tls")
    if tls is not None and not _FINGERPRINT.fullmatch(tls):
        raise error("invite_malformed", reason="tls is not sha256: and 64 hexadecimal digits")
    try:
        url = relay_at(found[2])
        mesh = validate_mesh_name(parts.path.removeprefix("/"))
        relay = validate_node_id(fields["relay"])
    except PosthouseError as invalid:
        raise error("invite_malformed", reason=str(invalid)) from invalid
    if tls is not None:
        url = replace(url, scheme="https", others=tuple([replace(each, scheme="https") for each in url.others]))
    return Invite(url, mesh, relay, fields["code"], tls)
