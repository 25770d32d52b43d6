"""A daemon's directory as one encrypted file: keys, stores, memberships and pins; and restoring it.

The stores are copied while the daemon runs, each as one committed state. After a restore every store has a new epoch,
and each mesh carries a marker until it was compared with the relay's history: until then it accepts no message, because
an id may have been used after the backup. Restoring never overwrites an identity. The directory carries a marker from
the first file that a restore puts there to the last: no daemon starts with it, and a restore may run again.

    posthouse-daemon-backup-v1 LF, salt (16), header of a secretstream (24), then chunks: length (4, big endian) and
    ciphertext; the last chunk is tagged as final. The plaintext is a tar archive; its key is argon2id of a passphrase.

If you change the format: give it a new name, read the old one too, add a test with a file of each.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from nacl import bindings, exceptions, pwhash

from posthouse.daemon.agents.registry import AGENTS
from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.inbox.inbox import INBOX
from posthouse.daemon.outbox.transitions import OUTBOX
from posthouse.files import fsync_dir, open_nofollow, private_dir, write_atomic
from posthouse.journal.restore import restore_store
from posthouse.journal.store import JOURNAL
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import MIB
from posthouse.model.node import is_mesh_name
from posthouse.sqlite.backup import backup_store

_MAGIC = b"posthouse-daemon-backup-v1\n"
_CHUNK = MIB
_SEALED_MAX = _CHUNK + bindings.crypto_secretstream_xchacha20poly1305_ABYTES
_STORES = {"outbox.db": OUTBOX, "inbox.db": INBOX, "agents.db": AGENTS}
#: name patterns of the files next to the key: former keys, and the successor of a rotation in progress
_MESH_FILES = ("keypair*.json", "identity.json", "host_fingerprint.json", "roster.json", "config.toml")
_WORK_PREFIX = ".restore-"
_HOME_FILES = ("meshes.json", "pins.json", "default_mesh", "key*.json")


def back_up(directory: DaemonDirectory, home: Path, target: Path, passphrase: bytes) -> list[str]:
    """Write a backup to a new file and return the meshes in it; raises backup_exists."""
    if target.exists():
        raise error("backup_exists", path=str(target))
    work = Path(tempfile.mkdtemp(prefix=".backup-", dir=directory.root))
    try:
        meshes = _collect(directory, home, work / "files")
        with tarfile.open(work / "archive", "w") as archive:
            archive.add(work / "files", ".")
        _write_sealed(work / "archive", target, passphrase)
        return meshes
    finally:
        shutil.rmtree(work)


def _write_sealed(archive: Path, target: Path, passphrase: bytes) -> None:
    """Write the backup; a write that fails, such as on a full disk, leaves no file."""
    fd = open_nofollow(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as sealed, archive.open("rb") as plain:
            _seal(plain, sealed, passphrase)
            sealed.flush()
            os.fsync(sealed.fileno())
    except BaseException:
        target.unlink()
        raise
    fsync_dir(target.absolute().parent)


def restore(directory: DaemonDirectory, home: Path, source: Path, passphrase: bytes, clock: Clock) -> list[str]:
    """Restore a backup into a directory without an identity and return the meshes in it."""
    private_dir(directory.root)
    lock = directory.lock()
    try:
        if directory.is_persistent and not directory.restoring.exists():
            raise error("identity_is_persistent", directory=str(directory.root))
        for leftover in directory.root.glob(f"{_WORK_PREFIX}*"):  # of a killed restore: it holds keys
            shutil.rmtree(leftover)
        work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=directory.root))
        try:
            with source.open("rb") as sealed, (work / "archive").open("wb") as plain:
                _open(sealed, plain, passphrase, source)
            with tarfile.open(work / "archive") as archive:
                _extract(archive, work / "files", source)
            return _put_back(directory, home, work / "files", clock)
        finally:
            shutil.rmtree(work)
    finally:
        lock.close()


def _extract(archive: tarfile.TarFile, target: Path, source: Path) -> None:
    """Write the files of an archive; refuse names that lead out of the directory, and everything that is not a file."""
    for member in archive:
        path = Path(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
            reason = f"it holds {member.name!r}, which is not a file of a home"
            raise error("backup_unreadable", path=str(source), reason=reason)
        content = archive.extractfile(member)
        if content is None:
            private_dir(target / path)
        else:
            private_dir((target / path).parent)
            with content, (target / path).open("xb") as file:
                shutil.copyfileobj(content, file)


def _collect(directory: DaemonDirectory, home: Path, target: Path) -> list[str]:
    meshes = directory.meshes()
    for name in meshes:
        folder = private_dir(target / "daemon" / name)
        _copy(directory.mesh(name).root, folder, _MESH_FILES)
        for store in ("outbox.db", "inbox.db"):
            if (directory.mesh(name).root / store).exists():
                backup_store(directory.mesh(name).root / store, folder / store)
    if directory.agents.exists():
        backup_store(directory.agents, private_dir(target / "daemon") / "agents.db")
    _copy(home, private_dir(target / "home"), _HOME_FILES)
    return meshes


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for path in [path for name in names for path in sorted(source.glob(name))]:
        write_atomic(target / path.name, path.read_bytes())


def _put_back(directory: DaemonDirectory, home: Path, files: Path, clock: Clock) -> list[str]:
    """Put restored files into place, instead of those that an interrupted restore has left."""
    daemon = files / "daemon"
    meshes = sorted(path.name for path in daemon.iterdir() if path.is_dir() and is_mesh_name(path.name))
    begun = directory.restoring.read_text().split() if directory.restoring.exists() else []
    write_atomic(directory.restoring, " ".join({*begun, *meshes}).encode())
    for mesh in {*begun} - {*meshes}:
        shutil.rmtree(directory.mesh(mesh).root, ignore_errors=True)
    for path in (each for each in daemon.rglob("*.db") if each.name in _STORES):
        target = private_dir(directory.root / path.parent.relative_to(daemon)) / path.name
        restore_store(path, target, (JOURNAL, _STORES[path.name]), clock)
    for name in (each for each in _HOME_FILES if not any(home.glob(each))):
        _copy(files / "home", private_dir(home), (name,))
    for mesh in meshes:
        restored = directory.mesh(mesh)
        restored.prepare()
        write_atomic(restored.unreconciled, b"")
        _copy(daemon / mesh, restored.root, _MESH_FILES)
    directory.restoring.unlink()
    fsync_dir(directory.root)
    return meshes


def _key(passphrase: bytes, salt: bytes) -> bytes:
    size = bindings.crypto_secretstream_xchacha20poly1305_KEYBYTES
    limits = (pwhash.argon2id.OPSLIMIT_MODERATE, pwhash.argon2id.MEMLIMIT_INTERACTIVE)
    return pwhash.argon2id.kdf(size, passphrase, salt, *limits)


def _seal(plain: BinaryIO, sealed: BinaryIO, passphrase: bytes) -> None:
    salt = os.urandom(pwhash.argon2id.SALTBYTES)
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    header = bindings.crypto_secretstream_xchacha20poly1305_init_push(state, _key(passphrase, salt))
    sealed.write(_MAGIC + salt + header)
    chunk = plain.read(_CHUNK)
    while True:
        following = plain.read(_CHUNK)
        tag = (
            bindings.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
            if following
            else bindings.crypto_secretstream_xchacha20poly1305_TAG_FINAL
        )
        data = bindings.crypto_secretstream_xchacha20poly1305_push(state, chunk, None, tag)
        sealed.write(len(data).to_bytes(4, "big") + data)
        if not following:
            return
        chunk = following


def _open(sealed: BinaryIO, plain: BinaryIO, passphrase: bytes, source: Path) -> None:
    if sealed.read(len(_MAGIC)) != _MAGIC:
        raise error("backup_unreadable", path=str(source), reason="it is not a backup of a daemon")
    salt = sealed.read(pwhash.argon2id.SALTBYTES)
    header = sealed.read(bindings.crypto_secretstream_xchacha20poly1305_HEADERBYTES)
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    try:
        bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, header, _key(passphrase, salt))
        is_complete = False
        for data in _chunks(sealed):
            chunk, tag = bindings.crypto_secretstream_xchacha20poly1305_pull(state, data, None)
            plain.write(chunk)
            is_complete = tag == bindings.crypto_secretstream_xchacha20poly1305_TAG_FINAL
    except (exceptions.CryptoError, ValueError, RuntimeError) as fault:
        reason = "the passphrase is wrong, or the file was changed"
        raise error("backup_unreadable", path=str(source), reason=reason) from fault
    if not is_complete:
        raise error("backup_unreadable", path=str(source), reason="its end is missing")


def _chunks(sealed: BinaryIO) -> Iterator[bytes]:
    while head := sealed.read(4):
        size = int.from_bytes(head, "big")
        data = sealed.read(size) if size <= _SEALED_MAX else b""
        if len(data) != size or not data:
            raise ValueError("a chunk is cut off")
        yield data
