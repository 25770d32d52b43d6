"""The data directory of a bus: its layout, its open mailboxes, and the lock file of each process that has it open.

Invariant: every directory is 0700 and every file 0600 whatever the umask, and a mailbox or one of its four
directories that is a symbolic link is refused. A process is alive while it holds the lock on its file in procs/: the
kernel releases the lock when the process dies, and a file without a lock is that of a dead process.

If you change the layout: 1. docs/explain/bus.md, 2. recovery.py, 3. the rebuild in index/index_rows.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections import OrderedDict
from pathlib import Path

from posthouse.bus.maildir import FOLDERS, Mailbox
from posthouse.files import private_dir
from posthouse.model.errors import error

UNROUTED = "unrouted"
UNROUTED_FOLDERS = ("tmp", "failed")
_MAX_OPEN_MAILBOXES = 64  # one descriptor each, however many endpoints there are


def endpoint_hash(subject: str) -> str:
    """Return the name of an endpoint's mailbox."""
    return hashlib.sha256(subject.encode()).hexdigest()[:12]


class BusDirectory:
    """The paths of one data directory, and its open mailboxes."""

    def __init__(self, root: Path) -> None:
        self.root = private_dir(root)
        self.mailboxes = private_dir(root / "mailboxes")
        self.procs = private_dir(root / "procs")
        self.database = root / "bus.db"
        self.index = root / "index.db"
        self.rules = root / "access-rules.json"
        self.config = root / "config.json"
        self.tick = root / "journal.tick"
        self._open: OrderedDict[str, Mailbox] = OrderedDict()
        self._make_mailbox(self.root / UNROUTED, UNROUTED_FOLDERS)
        self.unrouted = Mailbox(self.root / UNROUTED, UNROUTED_FOLDERS)

    def path_of(self, hash_: str) -> Path:
        """Return the directory of a mailbox."""
        return self.mailboxes / hash_

    def make_mailbox(self, hash_: str) -> Mailbox:
        """Create the directories of a mailbox, or check those that exist."""
        self._make_mailbox(self.path_of(hash_), FOLDERS)
        return self.mailbox(hash_)

    def mailbox(self, hash_: str) -> Mailbox:
        """Return the mailbox, opening it if necessary; the least recently used of many is closed."""
        found = self._open.get(hash_)
        if found is not None and not os.fstat(found.fd).st_nlink:  # another process has removed it
            self.forget(hash_)
            found = None
        if found is not None:
            self._open.move_to_end(hash_)
            return found
        if hash_ == UNROUTED:
            return self.unrouted
        mailbox = self._open[hash_] = Mailbox(self.path_of(hash_))
        if len(self._open) > _MAX_OPEN_MAILBOXES:
            self._open.popitem(last=False)[1].close()
        return mailbox

    def recent_mailbox(self, hash_: str) -> Mailbox:
        """Return the mailbox without checking that it still exists; if it does not, every file in it is missing."""
        return self._open.get(hash_) or self.mailbox(hash_)

    def find_mailbox(self, hash_: str) -> Mailbox | None:
        """Return the mailbox, or None if it does not exist."""
        try:
            return self.mailbox(hash_)
        except FileNotFoundError:
            return None

    def forget(self, hash_: str) -> None:
        """Close a mailbox whose directory is about to be removed."""
        mailbox = self._open.pop(hash_, None)
        if mailbox is not None:
            mailbox.close()

    def hashes(self) -> list[str]:
        """Return the names of all mailboxes on disk."""
        with os.scandir(self.mailboxes) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def close(self) -> None:
        """Close every open mailbox."""
        for mailbox in self._open.values():
            mailbox.close()
        self._open.clear()
        self.unrouted.close()

    @staticmethod
    def _make_mailbox(path: Path, folders: tuple[str, ...]) -> None:
        if path.is_symlink():
            raise error("store_path_unsafe", path=str(path), reason="it is a symbolic link")
        for folder in ("", *folders):
            private_dir(path / folder)


class Instance:
    """The lock file that shows other processes that this Bus is open.

    A forked child does not inherit the registration: it closes its copy of the descriptor, so that the lock goes
    with the process that opened the Bus, even while the child lives on.
    """

    def __init__(self, procs: Path) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._path = procs / self.name
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchmod(self._fd, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # is_alive in another process holds it only for a moment
        #: number of this instance in bus.db, set once its row exists
        self.number = 0
        _OPEN_INSTANCES.add(self)

    def write_report(self, content: bytes) -> None:
        """Replace the content of the file, which describes this process to the others."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, content, 0)

    def close(self) -> None:
        """Remove the file before releasing its lock, so that no process finds it unlocked."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Close the descriptor and nothing else."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        _OPEN_INSTANCES.discard(self)


_OPEN_INSTANCES: set[Instance] = set()


def _forget_in_child() -> None:
    for instance in list(_OPEN_INSTANCES):
        instance.leave_to_parent()


os.register_at_fork(after_in_child=_forget_in_child)


def is_alive(procs: Path, name: str) -> bool:
    """Return True if a process has the Bus of that name open.

    If that cannot be determined (no descriptor is left, the file belongs to another user), the process counts as alive:
    otherwise its messages would be delivered twice.
    """
    try:
        fd = os.open(procs / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
