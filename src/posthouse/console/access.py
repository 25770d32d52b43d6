"""Access to the console: one-time links, tokens, and the check of the user at the other end of a connection.

A link works once, for LINK_TTL_S seconds; a page exchanges its code for a token, which lives as long as the process.
The token travels in a header and never in an address or a cookie: a cookie of 127.0.0.1 is sent to every port of this
machine. Codes and tokens are kept in memory only. Linux names the owner of every local socket, so connections of
other users are refused before their first byte is read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from posthouse.keys import new_token, same_token
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS

LINK_TTL_S = 60
_LINKS_MAX = 16  # unused links; a new one replaces the oldest
_TOKENS_MAX = 64  # one per browser profile that opened a link; a new one replaces the oldest
_SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOOPBACK_HEX = "0100007F"  # 127.0.0.1 in host order, also the end of its IPv6 form
_ROOT = 0


class Access:
    """The links and tokens of one console."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: code -> boot time of its end
        self._links: dict[str, int] = {}
        self._tokens: list[str] = []

    def issue_link(self) -> str:
        """Return the code of a new one-time link."""
        self._drop_expired()
        while len(self._links) >= _LINKS_MAX:
            del self._links[next(iter(self._links))]
        code = new_token()
        self._links[code] = self._clock.boot_ns() + LINK_TTL_S * SECOND_NS
        return code

    def exchange(self, code: str) -> str:
        """Return a token for the code of a link, which works only once; raises console_link_invalid."""
        self._drop_expired()
        found = next((each for each in self._links if same_token(code, each)), None)
        if found is None:
            raise error("console_link_invalid", seconds=LINK_TTL_S)
        del self._links[found]
        token = new_token()
        self._tokens = [*self._tokens[1 - _TOKENS_MAX :], token]
        return token

    def check(self, token: str | None) -> None:
        """Raise unless a token is one of this console."""
        if token is None:
            raise error("console_token_missing")
        if not any(same_token(token, each) for each in self._tokens):
            raise error("console_token_wrong")

    def _drop_expired(self) -> None:
        now_ns = self._clock.boot_ns()
        self._links = {code: end_ns for code, end_ns in self._links.items() if end_ns > now_ns}


def foreign_user_error(transport: asyncio.BaseTransport) -> PosthouseError | None:
    """Return an error if the other end of a connection belongs to another user, or its user cannot be determined."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(peer, tuple) or not isinstance(own, tuple):
        return error("console_peer_refused")
    owners = {uid for table in _SOCKET_TABLES for uid in _owners(table, int(peer[1]), int(own[1]))}
    return None if owners & {os.geteuid(), _ROOT} else error("console_peer_refused")


def _owners(table: Path, port: int, to_port: int) -> Iterator[int]:
    """Yield the users of sockets on loopback that are connected from one port to another."""
    local, remote = f"{_LOOPBACK_HEX}:{port:04X}", f"{_LOOPBACK_HEX}:{to_port:04X}"
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(local) and fields[2].endswith(remote):
                yield int(fields[7])
