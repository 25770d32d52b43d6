"""Where a relay may listen, and under which names: freely on loopback, elsewhere with an administrator and TLS.

A relay is public if a proxy publishes it, if it has public host names, or if it listens beyond loopback. Then its mesh
main must not be open. A host name to listen on is resolved and its addresses are checked, so a name never counts as
loopback because of its spelling.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from posthouse.http.guard import LOOPBACK_NAMES, Authority, Origin, Site, parse_authority, parse_origin
from posthouse.model.errors import error

_HTTPS_PORT = 443
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
    #: names that clients use
    hosts: tuple[Authority, ...] = ()
    #: web pages that may use the relay
    origins: tuple[Origin, ...] = ()
    #: False: main is closed on loopback too
    allows_open_main: bool = True

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


def parse_hosts(text: str | None) -> tuple[Authority, ...]:
    """Parse host names separated by commas, or raise hosts_invalid."""
    return tuple(_parse_host(part.strip()) for part in text.split(",")) if text else ()


def _parse_host(text: str) -> Authority:
    host = parse_authority(text)
    if host is None:
        raise error("hosts_invalid", host=text)
    return host


def parse_origins(text: str | None) -> tuple[Origin, ...]:
    """Parse origins of web pages separated by commas, or raise origins_invalid."""
    return tuple(_parse_origin(part.strip()) for part in text.split(",")) if text else ()


def _parse_origin(text: str) -> Origin:
    origin = parse_origin(text)
    if origin is None:
        raise error("origins_invalid", origin=text)
    return origin


def parse_metrics_listen(text: str | None) -> ListenAddress | Path | None:
    """Parse HOST:PORT on loopback or the path of a Unix socket, or raise metrics_listen_invalid."""
    if text is None:
        return None
    if "/" in text:
        return _check_socket_path(Path(text).expanduser().absolute())
    address = parse_listen(text)
    if not is_loopback(address):
        raise error("metrics_listen_invalid", listen=text, reason="other machines can reach this address")
    return address


def _check_socket_path(path: Path) -> Path:
    """Refuse the path of anything but a socket, because listening replaces the file."""
    if path.exists() and not path.is_socket():
        raise error("metrics_listen_invalid", listen=str(path), reason="there is a file that is not a socket")
    return path


def check_listen(address: ListenAddress, protection: Protection) -> None:
    """Raise an error if it is not safe to listen on an address with this protection."""
    if (protection.tls_cert is None) != (protection.tls_key is None):
        raise error("tls_invalid", reason="--tls-cert and --tls-key go together")
    if not is_loopback(address) and not protection.has_tls and not protection.is_behind_proxy:
        raise error("listen_unprotected", listen=str(address))
    if not may_open_main(address, protection) and not protection.has_admin:
        raise error("listen_without_admin", listen=str(address))
    if protection.is_behind_proxy and not protection.hosts:
        raise error("hosts_missing")


def may_open_main(address: ListenAddress, protection: Protection) -> bool:
    """Return True if main may be open: only programs of this machine can connect, and no setting forbids it."""
    is_public = protection.is_behind_proxy or bool(protection.hosts) or not is_loopback(address)
    return protection.allows_open_main and not is_public


def validate_peer_url(text: str) -> str:
    """Return the URL under which other relays reach this one, without a slash at its end; raise advertise_invalid."""
    scheme, _, authority = text.removesuffix("/").partition("://")
    if scheme.lower() not in ("http", "https") or parse_authority(authority) is None:
        raise error("advertise_invalid", url=text[:200])
    return text.rstrip("/")


def site_of(address: ListenAddress, protection: Protection) -> Site:
    """Return the names by which clients may address a relay, for its guard."""
    scheme, origins = "https" if protection.has_tls else "http", frozenset(protection.origins)
    is_local = is_loopback(address)
    own = LOOPBACK_NAMES | {_host_name(address)} if is_local else LOOPBACK_NAMES  # for health checks from this machine
    if protection.is_behind_proxy or not protection.has_tls:
        return Site(scheme, own, frozenset(protection.hosts), origins)
    if not is_local and not protection.hosts:
        return Site(scheme, None, origins=origins)
    return Site(scheme, own | {host.name for host in protection.hosts}, origins=origins)


def _host_name(address: ListenAddress) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host.lower()


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


def invite_address(address: ListenAddress, protection: Protection) -> str:
    """Return HOST:PORT for invites: the first host name that clients use, else the listen address."""
    if not protection.hosts:
        return str(address)
    name, port = protection.hosts[0]
    return f"{name}:{port or (address.port if protection.has_tls else _HTTPS_PORT)}"


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
