"""Key files: a node key on disk, in a private file (0600) of a private directory (0700).

    {"format": "posthouse-key-v1", "node": "ed25519:<hex>", "seed": "<64 hex>"}

Invariant: a key file appears complete or not at all and is never overwritten; a file that other users can access,
that belongs to another user or is a symbolic link is refused. A path may also name an OpenSSH private key. If you
change the format: give it a new name, keep reading the old one, add a test with a file of each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from posthouse.files import create_atomic, private_dir, read_private
from posthouse.keys import ssh
from posthouse.keys.identity import SEED_BYTES, NodeKey
from posthouse.model.errors import error

FORMAT: Literal["posthouse-key-v1"] = "posthouse-key-v1"


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["posthouse-key-v1"]
    node: str
    seed: str

    def __repr__(self) -> str:
        return f"_Content({self.node!r})"


def load(path: str | os.PathLike[str], passphrase: str | bytes | None = None) -> NodeKey:
    """Return the key in a posthouse key file or an OpenSSH private key file."""
    source = os.fspath(path)
    try:
        text = read_private(path).decode()
    except FileNotFoundError as failure:
        raise error("key_file_missing", path=source) from failure
    except UnicodeDecodeError:
        # the exception carries the bytes, which may be secret
        raise error("key_malformed", source=source, reason="it is not text") from None
    if text.lstrip().startswith("{"):
        return _parse(text, source)
    return ssh.read_private_key(text, passphrase, source=source)


def create(path: str | os.PathLike[str], key: NodeKey | None = None) -> NodeKey:
    """Store `key`, or a new key, at `path`; raise key_file_exists instead of replacing a file."""
    key = key or NodeKey.generate()
    if not _store(Path(path), key):
        raise error("key_file_exists", path=os.fspath(path))
    return key


def load_or_create(path: str | os.PathLike[str], passphrase: str | bytes | None = None) -> NodeKey:
    """Return the key at `path`, or store a new one there; two concurrent processes get the same key."""
    target = Path(path)
    if not os.path.lexists(target):
        key = NodeKey.generate()
        if _store(target, key):
            return key
    return load(target, passphrase)


def _store(target: Path, key: NodeKey) -> bool:
    private_dir(target.parent)
    content = _Content(FORMAT, key.node, key.reveal_seed().hex())
    try:
        create_atomic(target, msgspec.json.encode(content) + b"\n")
    except FileExistsError:
        return False
    return True


def _parse(text: str, source: str) -> NodeKey:
    try:
        content = msgspec.json.decode(text, type=_Content)
        seed = bytes.fromhex(content.seed)
    except ValueError:
        # the text and the exception may contain the seed: neither goes into the error
        raise error("key_malformed", source=source, reason="it is not a key file of posthouse") from None
    if len(seed) != SEED_BYTES:
        raise error("key_malformed", source=source, reason="its seed has the wrong length")
    key = NodeKey(seed)
    if key.node != content.node:
        raise error("key_malformed", source=source, reason="its seed does not belong to its node id")
    return key
