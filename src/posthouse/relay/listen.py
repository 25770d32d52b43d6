"""Where a relay may listen: on loopback freely, beyond it only with TLS (or a proxy that ends it) and an administrator.

Names are resolved first and the addresses judged, so that a name is never taken for loopback because of how it looks.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from posthouse.model.errors import error

_LISTEN = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^:\[\]/?#@\s]+)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Protection:
    """What stands between the relay and others on the network."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    is_behind_proxy: bool = False
    has_admin: bool = False

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None


def parse_listen(text: str) -> ListenAddress:
    """Return the place a text names, or raise listen_invalid."""
    found = _LISTEN.fullmatch(text)
    if found is None:
        raise error("listen_invalid", listen=text, reason="it is not HOST:PORT")
    port = int(found["port"])
    if port > 65_535:
        raise error("listen_invalid", listen=text, reason="a port is at most 65535")
    return ListenAddress(found["six"] or found["host"], port)


def check_listen(place: ListenAddress, protection: Protection) -> None:
    """Raise unless listening there is safe: listen_unprotected or listen_without_admin."""
    if (protection.tls_cert is None) != (protection.tls_key is None):
        raise error("tls_invalid", reason="--tls-cert and --tls-key go together")
    if is_loopback(place):
        return
    if not protection.has_tls and not protection.is_behind_proxy:
        raise error("listen_unprotected", listen=str(place))
    if not protection.has_admin:
        raise error("listen_without_admin", listen=str(place))


def is_loopback(place: ListenAddress) -> bool:
    """Tell whether every address behind a host is this machine's own."""
    try:
        infos = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as failure:
        raise error("listen_invalid", listen=str(place), reason=str(failure)) from failure
    return all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)


def tls_context(protection: Protection) -> ssl.SSLContext | None:
    """Return the TLS context of a server, or None without a certificate; raises tls_invalid."""
    if protection.tls_cert is None or protection.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(protection.tls_cert, protection.tls_key)
    except (OSError, ssl.SSLError) as failure:
        raise error("tls_invalid", reason=str(failure)) from failure
    return context


def advertised(listening: str, host_header: str | None) -> str:
    """Return HOST:PORT for others: where the relay listens, or how it was reached if that is every address."""
    place = parse_listen(listening)
    if not is_every_address(place.host) or host_header is None or _LISTEN.fullmatch(host_header) is None:
        return listening
    return host_header


def is_every_address(host: str) -> bool:
    """Tell whether a host stands for all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
