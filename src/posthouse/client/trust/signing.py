"""Sign, seal, open and verify events on the client's side.

A signer's created_at_ns never repeats or decreases, so the second of two replaceable events is always the newer one;
it follows the clock back only if the clock was set back by a large step, because a relay refuses events from its
future. For the same reason it does not follow a clock that was set forward since a relay accepted it. Content for one
reader is sealed in a NaCl box, for several with age; tags are never sealed. Seal an event once and keep it: sealing
again gives different bytes, hence a different event. The client does not trust the relay to report truthfully what
other nodes wrote, so it verifies id and signature of received events, off the event loop if there are many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from posthouse.keys import NodeKey, open_sealed, seal, sign_native, verify
from posthouse.keys.batch_signature import sign_batch
from posthouse.keys.sealing import BOX as BOX
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import AUTHENTICATION, Event, check_new_event, check_structure, event_id
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS
from posthouse.model.node import DEFAULT_MESH
from posthouse.model.rotation import SEALED_BY, resigned_bytes

_MAX_AHEAD_NS = CREATED_AT_MAX_AHEAD_NS // 2  # half of what a relay accepts: the relay's clock may lag


class Login(NamedTuple):
    """Both clocks when a relay accepted the date of a proof."""

    wall_ns: int
    boot_ns: int


class Signer:
    """Signs events of one node."""

    def __init__(self, key: NodeKey, clock: Clock) -> None:
        self.key = key
        self._clock = clock
        self._last_ns = 0
        #: the last one; None before
        self.login: Login | None = None

    def sign(self, kind: int, content: str = "", tags: Iterable[Sequence[str]] = ()) -> Event:
        """Return a signed event with the current time, or raise the first error in its fields."""
        return sign_drafts(self.key, [self.draft(kind, content, tags)])[0]

    def draft(self, kind: int, content: str = "", tags: Iterable[Sequence[str]] = ()) -> Draft:
        """Return an event with the current time that lacks its signature, or raise the first error in its fields."""
        now_ns = self._clock.wall_ns()
        if self.login is not None:
            expected_ns = self.login.wall_ns + self._clock.boot_ns() - self.login.boot_ns  # boot time never steps
            now_ns = expected_ns if now_ns > expected_ns + _MAX_AHEAD_NS else now_ns
        return draft_event(self.key, kind, content, tags, self._next_ns(now_ns))

    def prove(self, relay: str, *tags: tuple[str, str]) -> Event:
        """Return the authentication event (kind 22242) that proves possession of this key to one relay."""
        created_at_ns = self._next_ns(self._clock.wall_ns())
        return sign_event(self.key, AUTHENTICATION, "", (("relay", relay), *tags), created_at_ns)

    def note_login(self, proof: Event) -> None:
        """Note that a relay has just accepted a proof, and with it this clock."""
        self.login = Login(proof.created_at_ns, self._clock.boot_ns())

    def _next_ns(self, now_ns: int) -> int:
        is_too_far_ahead = self._last_ns > now_ns + _MAX_AHEAD_NS
        self._last_ns = now_ns if is_too_far_ahead else max(now_ns, self._last_ns + 1)
        return self._last_ns


def sign_event(key: NodeKey, kind: int, content: str, tags: Iterable[Sequence[str]], created_at_ns: int) -> Event:
    """Return the event with these fields, with its id and native signature, or raise the first error in them."""
    return sign_drafts(key, [draft_event(key, kind, content, tags, created_at_ns)])[0]


class Draft(NamedTuple):
    """An event that lacks its signature; its id is known."""

    id: str
    #: the bytes that the id and a native signature cover
    canonical: bytes
    created_at_ns: int
    kind: int
    tags: tuple[tuple[str, ...], ...]
    content: str

    @property
    def mesh(self) -> str:
        """The mesh that the event names, else the default one."""
        return next((tag[1] for tag in self.tags if tag[0] == "mesh"), DEFAULT_MESH)

    def with_signature(self, node: str, sig: str) -> Event:
        """Return the signed event."""
        return Event(
            id=self.id,
            pubkey=node,
            created_at_ns=self.created_at_ns,
            kind=self.kind,
            tags=self.tags,
            content=self.content,
            sig=sig,
        )


def draft_event(key: NodeKey, kind: int, content: str, tags: Iterable[Sequence[str]], created_at_ns: int) -> Draft:
    """Return the event with these fields without its signature, or raise the first error in them."""
    fixed = tuple(map(tuple, tags))
    canonical = check_new_event(key.node, created_at_ns, kind, fixed, content)
    return Draft(event_id(canonical), canonical, created_at_ns, kind, fixed, content)


def sign_drafts(key: NodeKey, drafts: Sequence[Draft], batch_max: int = 1) -> list[Event]:
    """Return the signed events in order; up to `batch_max` events of one mesh share a signature."""
    signatures: dict[str, str] = {}
    if batch_max > 1 and len(drafts) > 1:
        meshes: dict[str, list[str]] = {}
        for draft in drafts:
            meshes.setdefault(draft.mesh, []).append(draft.id)
        for ids in meshes.values():
            for batch in _batches(ids, batch_max):
                signatures |= zip(batch, sign_batch(key, batch), strict=True)
    return [
        draft.with_signature(key.node, signatures.get(draft.id) or sign_native(key, draft.canonical))
        for draft in drafts
    ]


def _batches(ids: Sequence[str], batch_max: int) -> Iterator[Sequence[str]]:
    """Yield the ids in batches; a last one that is alone is left out, because it needs no path."""
    for start in range(0, len(ids), batch_max):
        batch = ids[start : start + batch_max]
        if len(batch) > 1:
            yield batch


def sign_again(key: NodeKey, event: Event) -> Event:
    """Return a message of a former key, signed again by its successor; others are returned unchanged.

    The content stays, so that a relay which has the message already recognizes it.
    """
    former = next((each for each in key.former if each.node == event.pubkey), None)
    if former is None:
        return event
    tags = list(event.tags)
    if event.value("enc") == BOX:
        proof = former.sign(resigned_bytes(former.node, key.node, event.content)).hex()
        tags.append((SEALED_BY, former.node, proof))
    return sign_event(key, event.kind, event.content, tags, event.created_at_ns)


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
    """Return the content of an event, opened with this key, or one that it has replaced, if it is sealed."""
    enc = event.value("enc")
    if enc is None:
        return event.content
    named = {tag[1] for tag in event.tags if tag[0] in ("p", SEALED_BY) and len(tag) > 1} | {event.pubkey}
    for each in key.former:
        if each.node in named:
            with suppress(PosthouseError):
                return _open(each, event, enc)
    return _open(key, event, enc)


def _open(key: NodeKey, event: Event, enc: str) -> str:
    try:
        return open_sealed(key, _peer(key, event, enc), enc, event.content).decode()
    except UnicodeDecodeError as invalid:
        raise error("sealed_malformed", enc=enc, reason="its plaintext is not UTF-8") from invalid


def _peer(key: NodeKey, event: Event, enc: str) -> str:
    """Return the other node: the author, or the reader of a box that this node made."""
    author = _sealer(event)
    if enc != BOX or author != key.node:
        return author
    reader = event.value("p")
    if reader is None:
        raise error("sealed_malformed", enc=enc, reason="no p tag names its reader")
    return reader


def _sealer(event: Event) -> str:
    """Return the key that sealed an event: its author, or a former key which proves that the author may sign it."""
    tag = event.tag(SEALED_BY)
    if tag is None or len(tag) != 3:
        return event.pubkey
    verify(tag[1], resigned_bytes(tag[1], event.pubkey, event.content), tag[2])
    return tag[1]


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
