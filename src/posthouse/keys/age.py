"""Sealing for several readers: age armor, tag ["enc", "age"], each reader as an ssh-ed25519 recipient.

Anyone can seal for a node id, so age says nothing about the sender: the event's signature does. A sender
that wants to read its own message later lists itself as a reader. The `age` program opens the content with
the same key.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyrage  # type: ignore[import-untyped]  # a compiled module without type stubs

from posthouse.keys.identity import NodeKey
from posthouse.keys.openssh import write_private, write_public_line
from posthouse.model.errors import error

ENC = "age"
_BEGIN = "-----BEGIN AGE ENCRYPTED FILE-----\n"


def seal_age(readers: Iterable[str], plaintext: bytes) -> str:
    """Return `plaintext` sealed for every node in `readers`."""
    recipients = [pyrage.ssh.Recipient.from_str(write_public_line(node)) for node in dict.fromkeys(readers)]
    if not recipients:
        raise ValueError("sealing needs at least one reader")
    sealed: bytes = pyrage.encrypt(plaintext, recipients, armored=True)
    return sealed.decode("ascii")


def open_age(key: NodeKey, content: str) -> bytes:
    """Return the plaintext if `key` is one of the readers; refuse what was altered."""
    if not content.startswith(_BEGIN) or not content.isascii():
        raise error("sealed_malformed", enc=ENC, reason="it is not age armor")
    identity = pyrage.ssh.Identity.from_buffer(write_private(key).encode())
    try:
        plaintext: bytes = pyrage.decrypt(content.encode(), [identity])
    except pyrage.DecryptError as failure:
        raise error("sealed_unopened", enc=ENC) from failure
    return plaintext
