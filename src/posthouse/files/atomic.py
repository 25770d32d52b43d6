"""Files written whole or not at all: unique temporary name, fsync, rename or link, fsync of the directory.

Invariant: a reader sees the old content or the new one, never a part, also after a crash or power loss;
with `sync=False` the last holds for a crash of the process only. A crash may leave a temporary file
(hidden, ending in `.tmp`) behind, never a half-written one under the real name. Locking between writers is
not done here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.files.directory import fsync_dir
from posthouse.files.private import FILE_MODE, open_nofollow
from posthouse.model.errors import error


def write_atomic(path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = FILE_MODE) -> None:
    """Put `data` at `path`, replacing what is there; a symbolic link there is refused."""
    target = Path(path)
    if target.is_symlink():
        raise error("store_path_unsafe", path=str(target), reason="it is a symbolic link")
    with _temporary(target, data, sync=sync, mode=mode) as temporary:
        temporary.rename(target)
    if sync:
        fsync_dir(target.parent)


def create_atomic(path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = FILE_MODE) -> None:
    """Put `data` at `path` unless something is there, a dangling link included: then FileExistsError."""
    target = Path(path)
    with _temporary(target, data, sync=sync, mode=mode) as temporary:
        # link() refuses to replace, which rename() cannot promise: of two creators exactly one wins.
        os.link(temporary, target, follow_symlinks=False)
    if sync:
        fsync_dir(target.parent)


@contextmanager
def _temporary(target: Path, data: bytes, *, sync: bool, mode: int) -> Iterator[Path]:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    fd = open_nofollow(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(fd)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
