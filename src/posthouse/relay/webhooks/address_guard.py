"""Which addresses webhooks may connect to: public ones, and those that the operator lists.

A webhook is a URL that a member chose and the relay calls, so it could reach services inside the relay's network.
Every connection goes to an address that was checked: the resolver of the HTTP client returns allowed addresses only,
so a name that changes between the check and the connection gains nothing. Plain HTTP is only for listed networks.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from posthouse.http.caller_address import Address, Network
from posthouse.model.errors import PosthouseError, error

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressRefused(OSError):
    """No address of a host may be connected to."""


def embedded_address(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address maps to, otherwise the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    return address if address.teredo is None else address.teredo[1]


class AddressGuard:
    """Decides which addresses a webhook may connect to."""

    def __init__(self, listed: Iterable[Network] = ()) -> None:
        self._listed = tuple(listed)

    def may_connect(self, address: Address, *, is_plain: bool) -> bool:
        """Return True if a webhook may connect to an address; `is_plain` means without TLS."""
        address = embedded_address(address)
        if any(address.version == network.version and address in network for network in self._listed):
            return True
        return not is_plain and address.is_global and not address.is_multicast

    async def check_url(self, url: str) -> None:
        """Raise webhook_address_refused if no address of a URL's host may be connected to, as of now."""
        parts = urlsplit(url)
        try:
            await GuardedResolver(self, is_plain=parts.scheme == "http").resolve(parts.hostname or "", parts.port or 0)
        except AddressRefused as refused:
            raise self.refusal(url, str(refused)) from refused
        except OSError as failure:
            raise error("webhook_url_invalid", url=url[:200], reason=f"its host is unknown: {failure}") from failure

    def refusal(self, url: str, reason: str) -> PosthouseError:
        """Return the refusal of a URL."""
        return error("webhook_address_refused", url=url[:200], reason=reason)


class GuardedResolver(AbstractResolver):
    """Resolves host names to addresses that may be connected to."""

    def __init__(self, guard: AddressGuard, *, is_plain: bool) -> None:
        self._guard = guard
        self._is_plain = is_plain

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the allowed addresses of a host, or raise AddressRefused."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        allowed: list[ResolveResult] = []
        for each_family, _type, protocol, _name, place in found:
            text = str(place[0]).partition("%")[0]
            if self._guard.may_connect(ipaddress.ip_address(text), is_plain=self._is_plain):
                allowed.append(
                    ResolveResult(
                        hostname=host,
                        host=str(place[0]),
                        port=port,
                        family=each_family,
                        proto=protocol,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
        if not allowed:
            way = "without TLS " if self._is_plain else ""
            raise AddressRefused(f"a webhook must not connect {way}to an address of {host}")
        return allowed

    async def close(self) -> None:
        """Release nothing: there is nothing to release."""
