"""The identity of a daemon: its node key, and the machine it was made on.

The host fingerprint is written when the identity is made and compared at every start, because a copied directory
would let two machines act as one node. A machine without a host id never counts as a different one. Outbox rows are
signed by one key: an ephemeral daemon aborts rows of an earlier key, and `remint` refuses while rows are pending.

    fingerprint  sha256("v2" NUL host id NUL stable MAC); nothing of it leaves the machine
    file         {"format": "posthouse-host-v2", "fingerprint": "<64 hex>", "host": "<64 hex>"}
    identity     {"format": "posthouse-identity-v1", "mesh": MESH, "node": NODE, "is_adopted": false}

A directory is for one mesh and one key. A missing key is an error, never a reason to make a new one: the relay and
every member know the old one. A rotation replaces the key; the former ones stay in the directory, for mail that was
sealed for them. If you change a format: give it a new name, read the old one too, add a test with a file of each.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from posthouse.client import Client
from posthouse.daemon.directory import MeshDirectory
from posthouse.daemon.outbox.outbox import Outbox, read_depth
from posthouse.daemon.outbox.transitions import abort_open_rows
from posthouse.daemon.settings import ClonePolicy
from posthouse.files import read_private, write_atomic
from posthouse.keys import NodeKey, keyfile
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.rotation import KeyChange

FINGERPRINT_VERSION = "v2"
_HOST_ID_FILES = ("etc/machine-id", "var/lib/dbus/machine-id")
_WIRED, _WIRELESS = ("en", "eth"), ("wl",)
_NO_MAC = "00:00:00:00:00:00"


@dataclass(frozen=True, slots=True)
class HostFingerprint:
    """What identifies a machine."""

    host_id: str
    mac: str

    @property
    def digest(self) -> str:
        """The fingerprint, in hexadecimal digits."""
        return hashlib.sha256("\0".join((FINGERPRINT_VERSION, self.host_id, self.mac)).encode()).hexdigest()

    @property
    def host_digest(self) -> str:
        """A digest of the host id alone; it stays when a network card is replaced."""
        return hashlib.sha256("\0".join((FINGERPRINT_VERSION, self.host_id)).encode()).hexdigest()


def read_host(root: Path = Path("/")) -> HostFingerprint:
    """Return the fingerprint of the machine whose files lie below `root`; missing parts are empty."""
    return HostFingerprint(_host_id(root), _stable_mac(root / "sys/class/net"))


def _host_id(root: Path) -> str:
    for name in _HOST_ID_FILES:
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text and text != "uninitialized":
            return text
    return ""


def _stable_mac(interfaces: Path) -> str:
    try:
        names = sorted(path.name for path in interfaces.iterdir())
    except OSError:
        return ""
    for kinds in (_WIRED, _WIRELESS):
        for name in names:
            if name.startswith(kinds) and (mac := _physical_mac(interfaces / name)):
                return mac
    return ""


def _physical_mac(interface: Path) -> str | None:
    """Return the address of a network card; virtual interfaces have no device and are skipped."""
    if not (interface / "device").exists() or (interface / "bridge").exists():
        return None
    try:
        mac = (interface / "address").read_text().strip().lower()
    except OSError:
        return None
    return mac if mac and mac != _NO_MAC else None


log = structlog.get_logger(__name__)


class _HostFile(msgspec.Struct):
    format: Literal["posthouse-host-v2"]
    fingerprint: str
    #: digest of the host id alone
    host: str


def check_host(path: Path, host: HostFingerprint, policy: ClonePolicy, directory: Path) -> None:
    """Compare this machine with the one the identity was made on; raises host_changed under the policy `refuse`."""
    try:
        known = msgspec.json.decode(read_private(path), type=_HostFile)
    except FileNotFoundError:
        accept_host(path, host)
        return
    except msgspec.MsgspecError as fault:
        raise error("host_changed", directory=str(directory), reason=f"{path.name} cannot be read") from fault
    if known.fingerprint == host.digest:
        return
    if known.host == host.host_digest:
        log.info("host_card_moved")
        accept_host(path, host)
        return
    if policy is ClonePolicy.REFUSE:
        raise error("host_changed", directory=str(directory))
    report = log.warning if policy is ClonePolicy.WARN else log.info
    report("host_changed", policy=policy.value)


def accept_host(path: Path, host: HostFingerprint) -> None:
    """Record that the identity belongs to this machine."""
    content = _HostFile("posthouse-host-v2", host.digest, host.host_digest)
    write_atomic(path, msgspec.json.encode(content) + b"\n")


_CI = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL")


def is_ephemeral_by_default(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True on a machine of a continuous integration service, which exists for one run only."""
    return any(environ.get(name, "").lower() not in ("", "0", "false") for name in _CI)


class _IdentityFile(msgspec.Struct):
    format: Literal["posthouse-identity-v1"]
    mesh: str
    node: str
    #: the command line uses this key in the mesh, although the home has another key
    is_adopted: bool = False


def persistent_identity(directory: MeshDirectory) -> NodeKey:
    """Return the key of a directory; create it in a new directory. Raises if the files do not belong together."""
    known = _read_identity(directory)
    if known is not None and known.mesh != directory.mesh:
        raise _mismatch(directory, f"mesh {known.mesh}", f"mesh {directory.mesh}")
    if not directory.key.exists() and directory.is_persistent:
        node = "an earlier identity" if known is None else known.node
        raise error("identity_lost", directory=str(directory.root), node=node)
    key = keyfile.load_or_create(directory.key)
    if known is not None and not key.stands_for(known.node):  # a rotation may have ended before it was recorded
        raise _mismatch(directory, known.node, key.node)
    record_identity(directory, key.node)
    return key


async def ephemeral_identity(outbox: Outbox) -> NodeKey:
    """Return a new key that is not stored, after the rows of an earlier one were aborted."""
    aborted = await outbox.abort_open()
    if aborted:
        log.warning("outbox_aborted", rows=aborted, reason="they were signed by an identity that is gone")
    return NodeKey.generate()


def _mismatch(directory: MeshDirectory, expected: str, found: str) -> PosthouseError:
    return error("identity_mismatch", directory=str(directory.root), expected=expected, found=found)


def record_identity(directory: MeshDirectory, node: str, *, is_adopted: bool = False) -> None:
    """Record the mesh and the key that a directory is for; a key that has adopted the home key's rights keeps them."""
    known = _read_identity(directory)
    is_adopted = is_adopted or (known is not None and known.is_adopted)
    content = _IdentityFile("posthouse-identity-v1", directory.mesh, node, is_adopted)
    if known != content:
        write_atomic(directory.identity, msgspec.json.encode(content) + b"\n")


def _read_identity(directory: MeshDirectory) -> _IdentityFile | None:
    try:
        return msgspec.json.decode(read_private(directory.identity), type=_IdentityFile)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as fault:
        raise error("store_not_ours", path=str(directory.identity), expected="daemon", reason=str(fault)) from fault


def accept_this_host(directory: MeshDirectory) -> None:
    """Record this machine as the one of the identity; the daemon must not run."""
    lock = directory.lock()
    try:
        accept_host(directory.host_fingerprint, read_host())
    finally:
        lock.close()


def remint(directory: MeshDirectory, clock: Clock, *, abort_pending: bool = False) -> tuple[str, str]:
    """Create a new identity; return the node ids before and after. Raises remint_pending while rows are pending."""
    directory.prepare()
    lock = directory.lock()
    try:
        before = keyfile.load(directory.key).node if directory.key.exists() else ""
        abort_rows(directory, clock, abort_pending=abort_pending)
        if before:
            directory.key.rename(directory.key.with_name(f"keypair.{before.rpartition(':')[2][:16]}.json"))
        key = keyfile.create(directory.key)
        record_identity(directory, key.node)
        accept_host(directory.host_fingerprint, read_host())
        return before, key.node
    finally:
        lock.close()


def abort_rows(directory: MeshDirectory, clock: Clock, *, abort_pending: bool) -> None:
    """Abort the rows that were not sent; raises remint_pending if there are any, unless they may be aborted."""
    if not directory.outbox.exists():
        return
    outbox = Outbox(directory.outbox, directory.mesh, clock)
    try:
        depth = outbox.store.pool.run_blocking(read_depth)
        rows = depth.pending + depth.inflight
        if rows and not abort_pending:
            raise error("remint_pending", rows=rows)
        outbox.store.writer.run_blocking(lambda tx: abort_open_rows(tx, directory.mesh))
    finally:
        outbox.close()


def has_begun_rotation(directory: MeshDirectory) -> bool:
    """Return True if a rotation was begun and may have reached the relay."""
    return keyfile.next_path(directory.key).exists()


async def rotate_key(directory: MeshDirectory, client: Client) -> KeyChange:
    """Replace a host's key with a new one, at the relay and in the directory; `client` has the old key.

    A crash after any step leaves a working key. Until the relay has accepted the new key, that is the old one. After
    that the relay refuses the old key, and the daemon finds the new one next to it and repeats the steps. Rows of the
    outbox that the old key signed are signed again when they are sent.
    """
    if not directory.key.exists():
        hint = "A daemon without an identity of its own has a new key after each start anyway."
        raise error("key_file_missing", path=str(directory.key), hint=hint)
    successor = keyfile.prepare_next(directory.key)
    async with client:
        change = await client.keys.rotate(successor)
    keyfile.promote_next(directory.key)
    record_identity(directory, successor.node)
    log.warning("key_rotated", mesh=directory.mesh, before=change.node, node=successor.node)
    return change
