"""The address that a request counts for: the connection's or, behind a trusted proxy, that of the client it names.

A proxy appends the address of its own client to X-Forwarded-For or Forwarded (RFC 7239), so the last address that does
not belong to a trusted proxy is the nearest one that a client cannot choose freely. Everything before it may be
invented. One IPv6 network of 64 bits counts as one address, because a single host can use all of it. Pure functions;
the server decides what to count.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from posthouse.model.errors import error

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_IPV6_PREFIX = 64
_BRACKETED = re.compile(r"\[([^\]]+)\](?::[0-9_A-Za-z.-]+)?")
_WITH_PORT = re.compile(r"([^:]+):[0-9_A-Za-z.-]+")
#: one name=value pair of Forwarded, which may be missing, and the separator after it; spaces are matched possessively
#: (*+), because backtracking into a long run of them would take quadratic time
_FORWARDED = re.compile(r'\s*+(?:([A-Za-z0-9!#$%&\'*+.^_`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",;\s]*)))?\s*+([,;]|$)')


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks separated by commas, or raise trusted_proxies_invalid."""
    networks: list[Network] = []
    for part in text.split(","):
        try:
            networks.append(ipaddress.ip_network(part.strip(), strict=False))
        except ValueError as fault:
            raise error("trusted_proxies_invalid", reason=str(fault)) from fault
    return tuple(networks)


def counted_address(text: str) -> str:
    """Return the form of an address that limits count: IPv6 as its /64 network, other text unchanged."""
    address = _parse_address(text)
    if address is None:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


@dataclass(frozen=True, slots=True)
class AddressRule:
    """How a server finds the address that a request counts for."""

    #: proxies that are trusted to name their client
    trusted: tuple[Network, ...] = ()
    #: False: all clients share the address of a proxy that is not known, so nothing is counted per address
    is_counted: bool = True

    def is_trusted(self, peer: str) -> bool:
        """Return True if the other end of a connection is a trusted proxy."""
        address = _parse_address(peer)
        return address is not None and self._is_trusted(address)

    def peer(self, peer: str) -> str | None:
        """Return the counted address of a connection; None if it is a trusted proxy, or nothing is counted."""
        return None if not self.is_counted or self.is_trusted(peer) else counted_address(peer)

    def caller(self, peer: str, forwarded: Sequence[str], x_forwarded_for: Sequence[str]) -> str | None:
        """Return the counted address of a request, given the values of its headers; None if nothing is counted."""
        if not self.is_counted:
            return None
        if not self.is_trusted(peer):
            return counted_address(peer)
        found = {
            self._last_untrusted(peer, chain)
            for chain in (forwarded_chain(forwarded), x_forwarded_chain(x_forwarded_for))
            if chain
        }
        # a proxy writes one of the two headers and may pass on the other one as the client made it up
        return counted_address(found.pop() if len(found) == 1 else peer)

    def _last_untrusted(self, peer: str, chain: Sequence[str]) -> str:
        """Return the last address that is not a trusted proxy's, or the last one that a trusted proxy vouches for."""
        known = peer
        for text in reversed(chain):
            address = _parse_address(text)
            if address is None:  # `unknown`, or a name that the proxy made up
                return known
            known = str(address)
            if not self._is_trusted(address):
                return known
        return known

    def _is_trusted(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self.trusted)


def x_forwarded_chain(values: Iterable[str]) -> list[str]:
    """Return the addresses of X-Forwarded-For headers, the nearest last, without ports."""
    return [_without_port(part.strip()) for value in values for part in value.split(",") if part.strip()]


def forwarded_chain(values: Iterable[str]) -> list[str]:
    """Return the `for` of each element of Forwarded headers, the nearest last, without ports.

    An element without `for` is empty, and so is everything from the first mistake on: both name no address.
    """
    chain: list[str] = []
    for value in values:
        current, position = "", 0
        while position < len(value):
            found = _FORWARDED.match(value, position)
            if found is None:
                current = ""
                break
            name, quoted, plain, separator = found.groups()
            if name is not None and name.lower() == "for":
                current = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            position = found.end()
            if separator == ",":
                chain.append(_without_port(current))
                current = ""
        chain.append(_without_port(current))
    return chain


def _without_port(text: str) -> str:
    """Return an address without its port; a bare IPv6 address has none."""
    found = _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text)
    return text if found is None else found.group(1)


def _parse_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
