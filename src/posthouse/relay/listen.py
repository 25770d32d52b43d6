"""Where a relay may listen: freely on loopback, elsewhere only with an administrator and TLS (or a TLS proxy).

A host name is resolved and its addresses are checked, so a name never counts as loopback because of its spelling.
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
    """What protects the relay from the network."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    is_behind_proxy: bool = False
    has_admin: bool = False

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None


def parse_listen(text: str) -> ListenAddress:
    """Parse HOST:PORT, or raise listen_invalid."""
    found = _LISTEN.fullmatch(text)
    if found is None:
        raise error("listen_invalid", listen=text, reason="it is not HOST:PORT")
    port = int(found["port"])
    if port > 65_535:
        raise error("listen_invalid", listen=text, reason="a port is at most 65535")
    return ListenAddress(found["six"] or found["host"], port)


def check_listen(address: ListenAddress, protection: Protection) -> None:
    """Raise tls_invalid, listen_unprotected or listen_without_admin unless it is safe to listen on an address."""
    if (protection.tls_cert is None) != (protection.tls_key is None):
        raise error("tls_invalid", reason="--tls-cert and --tls-key go together")
    if is_loopback(address):
        return
    if not protection.has_tls and not protection.is_behind_proxy:
        raise error("listen_unprotected", listen=str(address))
    if not protection.has_admin:
        raise error("listen_without_admin", listen=str(address))


def is_loopback(address: ListenAddress) -> bool:
    """Return True if every IP address of the host is a loopback address."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as failure:
        raise error("listen_invalid", listen=str(address), reason=str(failure)) from failure
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
    """Return HOST:PORT for invites: the listen address, or the Host header if the relay listens on every address."""
    address = parse_listen(listening)
    if not is_every_address(address.host) or host_header is None or _LISTEN.fullmatch(host_header) is None:
        return listening
    return host_header


def is_every_address(host: str) -> bool:
    """Return True if a host is the wildcard for all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
