"""Files that the operator edits while the bus runs: access-rules.json and config.json.

The files are checked between a publish and its transaction, so that no publish misses a change, and are read without
following links. Invariant: an access rule file that exists but is not valid denies everything until it is repaired, and
is never overwritten while it is broken; a missing one means no rules. config.json describes the whole state: a limit
that it does not name, or any limit if the file is removed, has the value of Bus's arguments or the default. An invalid
config.json is reported, and the previous values stay in force. posthouse.model.access_rules decides which rule applies.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from posthouse.files import locked, write_atomic
from posthouse.log import get_log
from posthouse.model.access_rules import AccessRules, Action, format_rules, parse_rules
from posthouse.model.budget import BudgetCeiling, CycleRule
from posthouse.model.errors import PosthouseError, error
from posthouse.model.reliability import Reliability, merge_reliability, named_limits

log = get_log(__name__)
_Stamp = tuple[int, int, int, int]
_ABSENT: _Stamp = (0, 0, 0, 0)


class _OperatorFile:
    """A file that the operator may create, edit and remove at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: changes whenever the file does; None: not checked yet
        self._stamp: _Stamp | None = None
        #: why the file is not in force, or None
        self.error: PosthouseError | None = None

    @property
    def is_absent(self) -> bool:
        """True if there was no such file at the last check."""
        return self._stamp == _ABSENT

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        stamp = _ABSENT
        with suppress(FileNotFoundError):
            found = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116 - runs for every publish
            stamp = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        if stamp != self._stamp:
            self._stamp, self.error = stamp, None
            self._on_changed()

    def _on_changed(self) -> None:
        """Read the file, which may be absent."""
        raise NotImplementedError


class RulesFile(_OperatorFile):
    """The access rules in force; `error` says why everything is denied."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rules = AccessRules()
        self.refresh()

    def _on_changed(self) -> None:
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


class ConfigFile(_OperatorFile):
    """Keeps `policy.reliability` equal to the file."""

    def __init__(self, path: Path, policy: Policy, on_change: Callable[[], None]) -> None:
        super().__init__(path)
        self._policy = policy
        self._on_change = on_change
        #: the values of the limits that the file does not name
        self._defaults = policy.reliability
        #: names of the limits that the file sets
        self.named: frozenset[str] = frozenset()

    def _on_changed(self) -> None:
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


_SETTLED_S = 2.0  # far longer than the step of a file system's clock: two changes within one step look like one


class FileChecks:
    """Notices every change of the operator's files; most directories have none of them, and that costs one stat.

    A file that exists is checked each time, because an edit in place changes nothing else. An absent file is only
    checked after the modification time of the directory has changed, and for a while after that time.
    """

    def __init__(self, directory: Path, files: tuple[_OperatorFile, ...]) -> None:
        self._directory = str(directory)
        self._files = files
        self._modified_ns = -1
        self._noticed_at_s = 0.0
        #: the absent files were checked after the last moment that can have the same modification time
        self._is_settled = False

    def run(self, now_s: float) -> None:
        """Read the files that have changed; `now_s` is the time of the loop."""
        try:
            modified_ns = os.stat(self._directory).st_mtime_ns  # noqa: PTH116 - runs for every publish
        except FileNotFoundError:
            modified_ns = 0
        if modified_ns != self._modified_ns:
            self._modified_ns, self._noticed_at_s, self._is_settled = modified_ns, now_s, False
        for file in self._files:
            if not (self._is_settled and file.is_absent):
                file.refresh()
        self._is_settled = now_s - self._noticed_at_s >= _SETTLED_S
