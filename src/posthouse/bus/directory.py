"""The data directory of a bus: where everything lies, made private, never reached through a planted link.

Invariant: every directory is 0700 and every file 0600 whatever the umask, and a mailbox or one of its four
directories that is a symbolic link is refused. What the files hold is the business of those who write them.

If you change the layout: 1. docs/explain/bus.md, 2. the sweep, 3. the index rebuild.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from posthouse.bus.mailbox import BOXES, Mailbox
from posthouse.files import private_dir
from posthouse.files.home import home_directory
from posthouse.model.errors import error

DIRECTORY_ENV = "POSTHOUSE_BUS_DIR"
UNROUTED = "unrouted"
_UNROUTED_BOXES = ("tmp", "failed")
_OPEN_MAILBOXES = 200  # one descriptor each: well below the usual limit of 1,024


def endpoint_hash(subject: str) -> str:
    """Return the name of the mailbox of an endpoint."""
    return hashlib.sha256(subject.encode()).hexdigest()[:12]


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the data directory a Bus uses when none is given."""
    named = environ.get(DIRECTORY_ENV)
    return Path(named) if named else home_directory(environ) / "bus"


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
        self._make_mailbox(self.root / UNROUTED, _UNROUTED_BOXES)
        self.unrouted = Mailbox(self.root / UNROUTED, _UNROUTED_BOXES)

    def path_of(self, hash_: str) -> Path:
        """Return the directory of a mailbox."""
        return self.mailboxes / hash_

    def make_mailbox(self, hash_: str) -> Mailbox:
        """Create the directories of a mailbox, or check those that are there."""
        self._make_mailbox(self.path_of(hash_), BOXES)
        return self.mailbox(hash_)

    def mailbox(self, hash_: str) -> Mailbox:
        """Return the open mailbox, opening it if need be; those unused for long are closed."""
        found = self._open.get(hash_)
        if found is not None and not os.fstat(found.fd).st_nlink:  # removed by another process, maybe made anew
            self.forget(hash_)
            found = None
        if found is not None:
            self._open.move_to_end(hash_)
            return found
        if hash_ == UNROUTED:
            return self.unrouted
        mailbox = self._open[hash_] = Mailbox(self.path_of(hash_))
        if len(self._open) > _OPEN_MAILBOXES:
            self._open.popitem(last=False)[1].close()
        return mailbox

    def forget(self, hash_: str) -> None:
        """Close a mailbox whose directory is about to go."""
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
    def _make_mailbox(path: Path, boxes: tuple[str, ...]) -> None:
        if path.is_symlink():
            raise error("store_path_unsafe", path=str(path), reason="it is a symbolic link")
        for box in ("", *boxes):
            private_dir(path / box)
