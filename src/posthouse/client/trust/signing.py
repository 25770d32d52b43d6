"""Sign, seal, open and verify events on the client's side.

A signer's created_at_ns never repeats or decreases, so the second of two replaceable events is always the newer one;
it follows the clock back only if that was set back by much, because a relay refuses events from its future. Content
for one reader is sealed in a NaCl box, for several with age; tags are never sealed. Seal an event once and keep it:
sealing again gives different bytes, hence a different event. The client does not trust the relay about what other
nodes wrote, so it verifies id and signature of received events, off the event loop if there are many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from posthouse.keys import NodeKey, open_sealed, seal, sign_native, verify
from posthouse.keys.sealing import BOX as BOX
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import AUTHENTICATION, Event, check_new_event, check_structure, event_id
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS
from posthouse.model.node import DEFAULT_MESH

_MAX_AHEAD_NS = CREATED_AT_MAX_AHEAD_NS // 2  # half of what a relay accepts: the relay's clock may lag


class Signer:
    """Signs events of one node."""

    def __init__(self, key: NodeKey, clock: Clock) -> None:
        self.key = key
        self._clock = clock
        self._last_ns = 0

    def sign(self, kind: int, content: str = "", tags: Iterable[Sequence[str]] = ()) -> Event:
        """Return a signed event with the present time, or raise the first error in its fields."""
        return sign_event(self.key, kind, content, tags, self._next_ns())

    def prove(self, relay: str, *tags: tuple[str, str]) -> Event:
        """Return the authentication event (kind 22242) that proves possession of this key to one relay."""
        return sign_event(self.key, AUTHENTICATION, "", (("relay", relay), *tags), self._next_ns())

    def _next_ns(self) -> int:
        now_ns = self._clock.wall_ns()
        is_too_far_ahead = self._last_ns > now_ns + _MAX_AHEAD_NS
        self._last_ns = now_ns if is_too_far_ahead else max(now_ns, self._last_ns + 1)
        return self._last_ns


def sign_event(key: NodeKey, kind: int, content: str, tags: Iterable[Sequence[str]], created_at_ns: int) -> Event:
    """Return the event with these fields, with its id and native signature, or raise the first error in them."""
    fixed = tuple(map(tuple, tags))
    canonical = check_new_event(key.node, created_at_ns, kind, fixed, content)
    return Event(
        id=event_id(canonical),
        pubkey=key.node,
        created_at_ns=created_at_ns,
        kind=kind,
        tags=fixed,
        content=content,
        sig=sign_native(key, canonical),
    )


def with_mesh(tags: Iterable[Sequence[str]], mesh: str) -> list[Sequence[str]]:
    """Return the tags with a mesh tag in front, unless they have one or the mesh is the default."""
    listed = list(tags)
    if mesh == DEFAULT_MESH or any(tag and tag[0] == "mesh" for tag in listed):
        return listed
    return [("mesh", mesh), *listed]


def seal_content(key: NodeKey, readers: Sequence[str], text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the sealed content and its enc and p tags."""
    nodes = list(dict.fromkeys(readers))
    enc, content = seal(key, nodes, text.encode())
    tags = [("enc", enc)]
    for node in nodes:
        tags.append(("p", node))
    return content, tags


def open_content(key: NodeKey, event: Event) -> str:
    """Return the content of an event, opened with this key if it is sealed."""
    enc = event.value("enc")
    if enc is None:
        return event.content
    try:
        return open_sealed(key, _peer(key, event, enc), enc, event.content).decode()
    except UnicodeDecodeError as invalid:
        raise error("sealed_malformed", enc=enc, reason="its plaintext is not UTF-8") from invalid


def _peer(key: NodeKey, event: Event, enc: str) -> str:
    """Return the other node: the author, or the reader of a box that this node made."""
    if event.pubkey != key.node or enc != BOX:
        return event.pubkey
    reader = event.value("p")
    if reader is None:
        raise error("sealed_malformed", enc=enc, reason="no p tag names its reader")
    return reader


INLINE_EVENTS = 4  # about 0.3 ms of work: waking a thread costs more


async def verify_events(events: Sequence[Event]) -> None:
    """Raise the first error in the structure, id or signature of events."""
    for invalid in await verification_errors(events):
        if invalid is not None:
            raise invalid


async def verification_errors(events: Sequence[Event]) -> list[PosthouseError | None]:
    """Return for each event the error in its structure, id or signature, or None; many are verified in a thread."""
    if len(events) <= INLINE_EVENTS:
        return _verification_errors(events)
    return await asyncio.to_thread(_verification_errors, events)


def _verification_errors(events: Sequence[Event]) -> list[PosthouseError | None]:
    errors: list[PosthouseError | None] = []
    for event in events:
        try:
            verify(event.pubkey, check_structure(event), event.sig)
            errors.append(None)
        except PosthouseError as invalid:
            errors.append(invalid)
    return errors
