"""Spare files: the file of a handled message stays in tmp/ and is written over for the next one, instead of removed.

Creating a file is the one slow step of a mailbox: an ext4 without a journal looks past every inode that was deleted in
the last minutes, for up to half a millisecond. A spare is used only by the process that put it aside; its name ends
in the name of that process, so that the sweep removes what the dead leave.

Invariant: a file is written over only after its message has ended and its name in cur/ is gone. Whoever still reads
it finds that out, because Mailbox.read looks at the name again after reading. A file that others have linked, opened
to others or replaced is not written over. Not for durability "power", where a name may outlive what it names.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from posthouse.bus.mailbox import Mailbox
from posthouse.model.errors import PosthouseError

MAX_BYTES = 16 * 1024  # of a file that is kept: nearly every message
MAX_FILES = 1_024  # of all mailboxes together: 16 MiB of disk at most


class Spares:
    """The spare files of one open Bus, by mailbox."""

    def __init__(self, instance: str, find_mailbox: Callable[[str], Mailbox | None], max_files: int) -> None:
        self._suffix = f".{instance}"
        self._find_mailbox = find_mailbox
        self._numbers = count()
        self._room = max_files
        self._names: dict[str, list[str]] = {}
        #: how few of a mailbox's spares there were since the last `trim`
        self._least: dict[str, int] = {}

    def put(self, hash_: str, mailbox: Mailbox, path: str) -> bool:
        """Put the file of an ended message aside; return False when it was left where it is."""
        if not self._room:
            return False
        name = f"spare-{next(self._numbers)}{self._suffix}"
        try:
            mailbox.move(path, f"tmp/{name}")
        except OSError:
            return False
        self._room -= 1
        names = self._names.get(hash_)
        if names is None:
            names = self._names[hash_] = []
            self._least[hash_] = 0
        names.append(name)
        return True

    def write(self, hash_: str, mailbox: Mailbox, data: bytes, target: str) -> bool:
        """Write `data` over a spare and rename it to `target`; return False when there is none to use."""
        names = self._names.get(hash_)
        if not names or len(data) > MAX_BYTES:
            return False
        name = names.pop()
        self._room += 1
        if len(names) < self._least[hash_]:
            self._least[hash_] = len(names)
        try:
            if mailbox.overwrite(name, data):
                mailbox.move(f"tmp/{name}", target)
                return True
        except FileNotFoundError:  # somebody took it away, or the mailbox: creating a file tells which
            pass
        except OSError:
            _discard(mailbox, name)
            raise
        _discard(mailbox, name)
        return False

    def trim(self) -> None:
        """Remove those that were not needed since the last time."""
        for hash_ in list(self._names):
            self._remove(hash_, self._least[hash_])

    def close(self) -> None:
        """Remove all."""
        for hash_ in list(self._names):
            self._remove(hash_, len(self._names[hash_]))

    def forget(self, hash_: str) -> None:
        """The mailbox goes, and its spares with it."""
        self._room += len(self._names.pop(hash_, ()))

    def _remove(self, hash_: str, most: int) -> None:
        try:
            mailbox = self._find_mailbox(hash_)
        except (OSError, PosthouseError):  # damaged: swept once it is repaired and this process has ended
            mailbox = None
        if mailbox is None:
            self.forget(hash_)
            return
        names = self._names[hash_]
        for name in names[:most]:
            _discard(mailbox, name)
        self._room += most
        self._names[hash_] = names[most:]
        self._least[hash_] = len(names) - most


def _discard(mailbox: Mailbox, name: str) -> None:
    try:
        mailbox.remove(f"tmp/{name}")
    except OSError:  # swept once this process has ended
        return
