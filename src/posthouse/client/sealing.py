"""Sealing the content of events for their readers, and opening it again.

One reader gets a NaCl box, several get age; readers are named in p tags. Only the content is sealed: tags stay in the
clear. An event is sealed once and kept: sealing again gives other bytes, and other bytes are another event.
"""

from __future__ import annotations

from collections.abc import Sequence

from posthouse.keys import NodeKey, open_sealed, seal
from posthouse.keys.box import ENC as BOX
from posthouse.model.errors import error
from posthouse.model.event import Event


def seal_content(key: NodeKey, readers: Sequence[str], text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the sealed content, and the enc and p tags that go with it."""
    nodes = list(dict.fromkeys(readers))
    enc, content = seal(key, nodes, text.encode())
    return content, [("enc", enc), *(("p", node) for node in nodes)]


def open_content(key: NodeKey, event: Event) -> str:
    """Return the content of an event in the clear; sealed content must open with this key as a whole."""
    enc = event.value("enc")
    if enc is None:
        return event.content
    try:
        return open_sealed(key, _peer(key, event, enc), enc, event.content).decode()
    except UnicodeDecodeError as fault:
        raise error("sealed_malformed", enc=enc, reason="what it holds is not text") from fault


def _peer(key: NodeKey, event: Event, enc: str) -> str:
    """Return the other side: the author, or for an own box its reader."""
    if event.pubkey != key.node or enc != BOX:
        return event.pubkey
    reader = event.value("p")
    if reader is None:
        raise error("sealed_malformed", enc=enc, reason="no p tag names its reader")
    return reader
