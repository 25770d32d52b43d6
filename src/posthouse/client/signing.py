"""Making events: fields in, a signed event out.

created_at_ns never repeats or goes back within one signer, so that of two replaceable events made one after the other
the second is always the newer. Only a clock that was set back by much is followed: it was wrong before, and a relay
would refuse events of its future.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from posthouse.keys import NodeKey, sign_native
from posthouse.model.canonical import canonical_event_bytes, event_id
from posthouse.model.clock import Clock
from posthouse.model.event import Event
from posthouse.model.event_structure import check_structure
from posthouse.model.kinds import AUTHENTICATION
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS
from posthouse.model.node import DEFAULT_MESH

_FOLLOWED_NS = CREATED_AT_MAX_AHEAD_NS // 2  # well before a relay, whose clock may lag, refuses it


class Signer:
    """Signs events of one node."""

    def __init__(self, key: NodeKey, clock: Clock) -> None:
        self.key = key
        self._clock = clock
        self._last_ns = 0

    def sign(self, kind: int, content: str = "", tags: Iterable[Sequence[str]] = ()) -> Event:
        """Return a signed event of now, or raise what is wrong with its fields."""
        event = sign_event(self.key, kind, content, tags, self._next_ns())
        check_structure(event)
        return event

    def prove(self, relay: str, *tags: tuple[str, str]) -> Event:
        """Return the event of kind 22242 that shows this key to one relay, now."""
        return sign_event(self.key, AUTHENTICATION, "", (("relay", relay), *tags), self._next_ns())

    def _next_ns(self) -> int:
        now_ns = self._clock.wall_ns()
        was_wrong = self._last_ns > now_ns + _FOLLOWED_NS
        self._last_ns = now_ns if was_wrong else max(now_ns, self._last_ns + 1)
        return self._last_ns


def sign_event(key: NodeKey, kind: int, content: str, tags: Iterable[Sequence[str]], created_at_ns: int) -> Event:
    """Return the event with these fields, with its id and native signature."""
    frozen = tuple(tuple(tag) for tag in tags)
    canonical = canonical_event_bytes(key.node, created_at_ns, kind, frozen, content)
    return Event(
        id=event_id(canonical),
        pubkey=key.node,
        created_at_ns=created_at_ns,
        kind=kind,
        tags=frozen,
        content=content,
        sig=sign_native(key, canonical),
    )


def with_mesh(tags: Iterable[Sequence[str]], mesh: str) -> list[Sequence[str]]:
    """Return the tags with the mesh named, unless they name one or it is the default."""
    listed = list(tags)
    if mesh == DEFAULT_MESH or any(tag and tag[0] == "mesh" for tag in listed):
        return listed
    return [("mesh", mesh), *listed]
