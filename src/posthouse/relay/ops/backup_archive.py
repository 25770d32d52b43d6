"""A backup with the relay's key: one tar file, readable by its owner only, with relay.db and key.json.

An archive appears whole or not at all, and never replaces a file. Reading takes the two members by name and nothing
else, so an archive from elsewhere cannot write outside the place it is restored to. A relay keeps its key: an archive
with another key is refused where a key is present.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from posthouse.files import fsync_dir, open_nofollow, read_private
from posthouse.keys import keyfile
from posthouse.model.errors import error

STORE_MEMBER = "relay.db"
KEY_MEMBER = "key.json"
_KEY_MAX_BYTES = 1 << 16


class Backup(NamedTuple):
    """The files of a backup; `key` is None in a backup without one."""

    store: Path
    key: Path | None


def write_archive(copy_store: Callable[[Path], None], key: Path, target: Path) -> None:
    """Write the copy of a store that `copy_store` makes, and the relay's key, to the new file `target`."""
    if target.exists() or target.is_symlink():
        raise error("backup_exists", path=str(target))
    key_text = read_private(key)
    with _temporary(target) as copy, _temporary(target) as archive:
        copy_store(copy)
        with open(open_nofollow(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:  # noqa: PTH123 - a descriptor
            _write_members(file, copy, key_text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(archive, target)  # unlike a rename, refuses a file that has appeared in the meantime
        except FileExistsError as exc:
            raise error("backup_exists", path=str(target)) from exc
    fsync_dir(target.parent)


@contextmanager
def open_backup(path: Path, directory: Path) -> Iterator[Backup]:
    """Yield the files of a backup, of either form; members of an archive are in `directory` until the block ends."""
    if not tarfile.is_tarfile(path):
        yield Backup(path, None)
        return
    with _temporary(directory / STORE_MEMBER) as store, _temporary(directory / KEY_MEMBER) as key:
        try:
            with tarfile.open(path) as archive:
                _extract(archive, STORE_MEMBER, store)
                _extract(archive, KEY_MEMBER, key, max_bytes=_KEY_MAX_BYTES)
        except (tarfile.TarError, KeyError, EOFError) as failure:
            raise error("backup_invalid", path=str(path), reason=str(failure)) from failure
        yield Backup(store, key)


def missing_key(backup: Backup, directory: Path) -> bytes | None:
    """Return the key file of a backup if the relay's directory has none; raise backup_key_differs for another key."""
    if backup.key is None:
        return None
    target = directory / KEY_MEMBER
    restored = keyfile.load(backup.key)
    if not target.exists():
        return read_private(backup.key)
    if keyfile.load(target).node != restored.node:
        raise error("backup_key_differs", path=str(target), backup=restored.node)
    return None


def _write_members(file: IO[bytes], store: Path, key_text: bytes) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(store, STORE_MEMBER, filter=_private)
        entry = _private(tarfile.TarInfo(KEY_MEMBER))
        entry.size = len(key_text)
        archive.addfile(entry, io.BytesIO(key_text))


def _private(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mode = 0o600
    return entry


def _extract(archive: tarfile.TarFile, name: str, target: Path, max_bytes: int | None = None) -> None:
    entry = archive.getmember(name)
    source = archive.extractfile(entry) if entry.isreg() else None
    if source is None or (max_bytes is not None and entry.size > max_bytes):
        raise tarfile.TarError(f"{name} is not a file of a backup")
    with source, open(open_nofollow(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:  # noqa: PTH123 - a descriptor
        shutil.copyfileobj(source, file)


@contextmanager
def _temporary(beside: Path) -> Iterator[Path]:
    path = beside.with_name(f".{beside.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
