"""Sealing as events say it: the value of the tag ["enc", ...] and the content that goes with it.

One reader gets a NaCl box, several get age; an event without the tag is in the clear and does not come
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posthouse.keys import age, box
from posthouse.keys.identity import NodeKey
from posthouse.model.errors import error


def seal(key: NodeKey, readers: Sequence[str], plaintext: bytes) -> tuple[str, str]:
    """Return (enc, content) of `plaintext` sealed by `key` for the nodes `readers`."""
    if len(readers) == 1:
        return box.ENC, box.seal_box(key, readers[0], plaintext)
    return age.ENC, age.seal_age(readers, plaintext)


def open_sealed(key: NodeKey, peer: str, enc: str, content: str) -> bytes:
    """Return the plaintext of content sealed as `enc`; `peer` is the other side, mostly the author."""
    try:
        opener = _OPENERS[enc]
    except KeyError:
        raise error("sealed_malformed", enc=enc[:16], reason="this form of sealing is not known") from None
    return opener(key, peer, content)


_OPENERS: dict[str, Callable[[NodeKey, str, str], bytes]] = {
    box.ENC: box.open_box,
    age.ENC: lambda key, _peer, content: age.open_age(key, content),
}
