"""Tokens: what stands for an authenticated node in HTTP requests, for one hour.

A token is known to its holder only: the relay keeps its hash, in memory, so that nothing on disk lets anybody in and
a restart ends all of them. Each node has a bounded number; a new one takes the place of its oldest. What is
looked up is the hash of what was sent, so the time of a look-up tells nothing about a token.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from posthouse.keys import new_token
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS, TOKEN_TTL_S

TOKENS_PER_NODE = 16  # enough for the processes of one node, few enough that none can hoard
MAX_TOKENS = 100_000  # about 40 MB; the oldest of all goes first


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is told to its holder, once."""

    text: str
    expires_at_ns: int

    def __repr__(self) -> str:
        return f"Token(expires_at_ns={self.expires_at_ns})"


@dataclass(frozen=True, slots=True)
class _Held:
    node: str
    expires_boot_ns: int


class Tokens:
    """The tokens in force."""

    def __init__(self, clock: Clock, *, ttl_s: int = TOKEN_TTL_S, max_tokens: int = MAX_TOKENS) -> None:
        self._clock = clock
        self._ttl_ns = ttl_s * SECOND_NS
        self._max_tokens = max_tokens
        #: by hash, oldest first: all live equally long, so the first is always the next to expire
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._of_node: dict[str, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def issue(self, node: str) -> Token:
        """Return a new token of `node`."""
        now_ns = self._clock.boot_ns()
        self._expire(now_ns)
        mine = self._of_node.get(node)
        if mine is not None and len(mine) >= TOKENS_PER_NODE:
            self._drop(next(iter(mine)))
        elif len(self._held) >= self._max_tokens:
            self._drop(next(iter(self._held)))
        text = new_token()
        digest = _digest(text)
        self._held[digest] = _Held(node, now_ns + self._ttl_ns)
        self._of_node.setdefault(node, OrderedDict())[digest] = None
        return Token(text, self._clock.wall_ns() + self._ttl_ns)

    def node_of(self, text: str) -> str:
        """Return the node a token stands for, or raise token_invalid."""
        held = self._held.get(_digest(text))
        if held is None or held.expires_boot_ns <= self._clock.boot_ns():
            raise error("token_invalid")
        return held.node

    def _expire(self, now_ns: int) -> None:
        while self._held:
            digest, held = next(iter(self._held.items()))
            if held.expires_boot_ns > now_ns:
                return
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        node = self._held.pop(digest).node
        mine = self._of_node[node]
        del mine[digest]
        if not mine:
            del self._of_node[node]


def _digest(text: str) -> bytes:
    # header bytes that are no UTF-8 arrive as surrogates: they must be unknown, not raise
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
