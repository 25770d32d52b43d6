"""Files that the operator edits while the bus runs: access-rules.json and config.json.

Each file is checked with one stat between a publish and its transaction, so that no publish misses a change, and is
read without following links. Invariant: an access rule file that exists but is not valid denies everything until it
is repaired, and is never overwritten while it is broken; a missing one means no rules. config.json describes the whole
state: what it does not name, and everything if it is removed, has the value of Bus's arguments or the default. An
invalid one keeps the previous values and is reported. posthouse.model.access_rules decides which rule applies.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from posthouse.files import locked, write_atomic
from posthouse.log import get_log
from posthouse.model.access_rules import AccessRules, Action, format_rules, parse_rules
from posthouse.model.budget import BudgetCeiling, CycleRule
from posthouse.model.errors import PosthouseError, error
from posthouse.model.reliability import Reliability, merge_reliability, named_limits

log = get_log(__name__)


class RulesFile:
    """The access rules in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._rules = AccessRules()
        #: why everything is denied, or None
        self.error: PosthouseError | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self.error = None
        try:
            self._rules = self._read()
        except PosthouseError as failure:
            self.error = failure
            log.error("access_rules_deny_everything", path=str(self._path), reason=str(failure))

    def rules(self) -> AccessRules:
        """Return the rules, or raise access_rules_invalid."""
        self.refresh()
        if self.error is not None:
            raise self.error
        return self._rules

    def denial(self, sender: str, endpoint: str) -> str | None:
        """Return why the sender may not write to the endpoint, or None if it may."""
        if self.error is not None:
            return f"access denied: {self._path.name} is broken ({self.error})"
        rule = self._rules.deciding_rule(sender, endpoint)
        if rule is None or rule.action is Action.ALLOW:
            return None
        return f"access denied: the rule from {rule.from_} to {rule.to} keeps {sender} from {endpoint}"

    def change(self, edit: Callable[[AccessRules], AccessRules]) -> None:
        """Replace the rules by the result of `edit`."""
        with self._locked():
            self._stamp = None
            rules = self.rules()
            write_atomic(self._path, format_rules(edit(rules)))
            self._stamp = None
            self.refresh()

    def _read(self) -> AccessRules:
        try:
            data = read_regular_file(self._path)
        except OSError as failure:
            reason = failure.strerror or str(failure)
            raise error("access_rules_invalid", where="the file", reason=reason) from failure
        return AccessRules() if data is None else parse_rules(data)

    def _locked(self) -> AbstractContextManager[None]:
        """Lock out other writers for the length of one small write."""
        return locked(self._path.with_name(f".{self._path.name}.lock"))


@dataclass(slots=True)
class Policy:
    """The operator's rules and limits; `reliability` follows config.json."""

    ceiling: BudgetCeiling
    cycle_rule: CycleRule
    reliability: Reliability
    rules: RulesFile


OPERATOR_FILE_MAX_BYTES = 4 * 1024 * 1024
Stamp = tuple[int, int, int, int]
_ABSENT: Stamp = (0, 0, 0, 0)


def file_stamp(path: Path) -> Stamp:
    """Return a value that changes whenever the file does."""
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - runs for every publish
    except FileNotFoundError:
        return _ABSENT
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def read_regular_file(path: Path) -> bytes | None:
    """Return the content of a regular file of at most OPERATOR_FILE_MAX_BYTES, or None if it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(OPERATOR_FILE_MAX_BYTES + 1)
    if len(data) > OPERATOR_FILE_MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {OPERATOR_FILE_MAX_BYTES} bytes")
    return data


class ConfigFile:
    """Keeps `policy.reliability` equal to the file."""

    def __init__(self, path: Path, policy: Policy, on_change: Callable[[], None]) -> None:
        self._path = path
        self._policy = policy
        self._on_change = on_change
        #: the values of what the file does not name
        self._defaults = policy.reliability
        self._stamp: Stamp | None = None
        #: names of the limits that the file sets
        self.named: frozenset[str] = frozenset()
        #: why the file is not in force, or None
        self.error: PosthouseError | None = None

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self.error = None
        self._read()
        self._on_change()

    def _read(self) -> None:
        try:
            data = read_regular_file(self._path)
            if data is None:
                self._policy.reliability, self.named = self._defaults, frozenset()
            else:
                self._policy.reliability = merge_reliability(self._defaults, data)
                self.named = named_limits(data)
        except OSError as failure:
            self._report(error("reliability_invalid", reason=failure.strerror or str(failure)))
        except PosthouseError as failure:
            self._report(failure)

    def _report(self, failure: PosthouseError) -> None:
        self.error = failure
        log.error("config_keeps_former_values", path=str(self._path), reason=str(failure))
