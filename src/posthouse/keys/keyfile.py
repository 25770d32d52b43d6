"""Key files: a node key on disk, in a private file (0600) of a private directory (0700).

    {"format": "posthouse-key-v1", "node": "ed25519:<hex>", "seed": "<64 hex>"}

Invariant: a key file appears complete or not at all; a file that other users can access, that belongs to another user
or is a symbolic link is refused. A path may also name an OpenSSH private key. Only a rotation replaces a key file, in
steps that each leave a working key: `key.next.json` holds the successor until the relay has accepted it, then the old
key is copied to `key.<16 digits>.json`, and the successor takes its place. Former keys next to a key file are loaded
with it, because mail may be sealed for them. If you change the format: give it a new name, keep reading the old one,
add a test with a file of each.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from posthouse.files import create_atomic, fsync_dir, private_dir, read_private
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
    """Return the key in a posthouse key file or an OpenSSH private key file, with the former keys next to it."""
    return _load(Path(path), passphrase, load_former(path))


def _load(path: Path, passphrase: str | bytes | None = None, former: Sequence[NodeKey] = ()) -> NodeKey:
    source = os.fspath(path)
    try:
        text = read_private(path).decode()
    except FileNotFoundError as failure:
        raise error("key_file_missing", path=source) from failure
    except UnicodeDecodeError:
        # the exception carries the bytes, which may be secret
        raise error("key_malformed", source=source, reason="it is not text") from None
    if text.lstrip().startswith("{"):
        return _parse(text, source, former)
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


_FORMER_DIGITS = 16
_FORMER = re.compile(r"(?P<stem>.+)\.[0-9a-f]{16}\.json")


def next_path(path: str | os.PathLike[str]) -> Path:
    """Return where the successor of the key at `path` is kept until the relay has accepted it."""
    target = Path(path)
    return target.with_name(f"{target.stem}.next.json")


def former_path(path: str | os.PathLike[str], node: str) -> Path:
    """Return where a former key of the key file at `path` is kept."""
    target = Path(path)
    return target.with_name(f"{target.stem}.{node.rpartition(':')[2][:_FORMER_DIGITS]}.json")


def load_former(path: str | os.PathLike[str]) -> list[NodeKey]:
    """Return the former keys next to a key file, the latest first."""
    target = Path(path)
    found = [each for each in target.parent.glob(f"{glob.escape(target.stem)}.*.json") if _is_former(each, target)]
    return [_load(each) for each in sorted(found, key=lambda each: each.stat().st_mtime_ns, reverse=True)]


def _is_former(path: Path, target: Path) -> bool:
    match = _FORMER.fullmatch(path.name)
    return match is not None and match["stem"] == target.stem


def prepare_next(path: str | os.PathLike[str]) -> NodeKey:
    """Return the prepared successor of the key at `path`; the same one until it is promoted."""
    if not Path(path).read_text(encoding="utf-8", errors="replace").lstrip().startswith("{"):
        reason = "an OpenSSH key is not replaced; `posthouse keys import` turns it into a key file"
        raise error("key_malformed", source=os.fspath(path), reason=reason)
    return load_or_create(next_path(path))


def promote_next(path: str | os.PathLike[str]) -> NodeKey:
    """Replace the key at `path` with its successor and keep the old key next to it; return the successor.

    A crash between two steps leaves the old key in place, and the next call finishes.
    """
    target = Path(path)
    _store(former_path(target, _load(target).node), _load(target))
    next_path(target).replace(target)
    fsync_dir(target.parent)
    return load(target)


def _store(target: Path, key: NodeKey) -> bool:
    private_dir(target.parent)
    content = _Content(FORMAT, key.node, key.reveal_seed().hex())
    try:
        create_atomic(target, msgspec.json.encode(content) + b"\n")
    except FileExistsError:
        return False
    return True


def _parse(text: str, source: str, former: Sequence[NodeKey] = ()) -> NodeKey:
    try:
        content = msgspec.json.decode(text, type=_Content)
        seed = bytes.fromhex(content.seed)
    except ValueError:
        # the text and the exception may contain the seed: neither goes into the error
        raise error("key_malformed", source=source, reason="it is not a key file of posthouse") from None
    if len(seed) != SEED_BYTES:
        raise error("key_malformed", source=source, reason="its seed has the wrong length")
    key = NodeKey(seed, former)
    if key.node != content.node:
        raise error("key_malformed", source=source, reason="its seed does not belong to its node id")
    return key
