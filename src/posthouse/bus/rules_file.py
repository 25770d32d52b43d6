"""access-rules.json: read again whenever it changed, changed only whole.

Invariant: a file that exists but cannot be read, or has one bad entry, denies everything and says so until it is
repaired; it is never overwritten while it is broken. A missing file means no rules. Changes are made under a lock
of their own, so that concurrent ones lose none. Whose rule decides is posthouse.model.access.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.bus.file_stamp import Stamp, read_stamped, stamp_of
from posthouse.files import write_atomic
from posthouse.log import get_log
from posthouse.model.access import AccessRules, Action, format_rules, parse_rules
from posthouse.model.errors import PosthouseError, error

log = get_log(__name__)


class RulesFile:
    """The access rules in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._rules = AccessRules()
        #: why everything is denied, or None
        self.fault: PosthouseError | None = None
        self.refresh()

    def refresh(self) -> None:
        """Notice a changed file."""
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self.fault = None
        try:
            self._rules = self._read()
        except PosthouseError as fault:
            self.fault = fault
            log.error("access_rules_deny_everything", path=str(self._path), reason=str(fault))

    def rules(self) -> AccessRules:
        """Return the rules, or raise access_rules_invalid."""
        self.refresh()
        if self.fault is not None:
            raise self.fault
        return self._rules

    def denial(self, sender: str, endpoint: str) -> str | None:
        """Return why the sender may not write to the endpoint, or None when it may."""
        if self.fault is not None:
            return f"access denied: {self._path.name} is broken ({self.fault})"
        rule = self._rules.deciding_rule(sender, endpoint)
        if rule is None or rule.action is Action.ALLOW:
            return None
        return f"access denied: the rule from {rule.from_} to {rule.to} keeps {sender} from {endpoint}"

    def change(self, edit: Callable[[AccessRules], AccessRules]) -> None:
        """Replace the rules by what `edit` makes of them."""
        with self._locked():
            self._stamp = None
            rules = self.rules()
            write_atomic(self._path, format_rules(edit(rules)))
            self._stamp = None
            self.refresh()

    def _read(self) -> AccessRules:
        try:
            data = read_stamped(self._path)
        except OSError as failure:
            reason = failure.strerror or str(failure)
            raise error("access_rules_invalid", where="the file", reason=reason) from failure
        return AccessRules() if data is None else parse_rules(data)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._path.with_name(f".{self._path.name}.lock")
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)  # held for one small write
            yield
        finally:
            os.close(fd)
