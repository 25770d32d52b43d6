"""Checks of what a user has: the home directory, the key, the settings, room on the disk.

They look and never repair: a mode that is too wide may mean that somebody read the file.
"""

from __future__ import annotations

import difflib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from posthouse.cli.doctor.finding import Finding, fail, ok, warn
from posthouse.cli.home import CONFIG_NAME, Home
from posthouse.files.home import HOME_ENV
from posthouse.model.clock import TEST_CLOCK_ENV
from posthouse.model.errors import PosthouseError
from posthouse.model.settings import SETTINGS, Source

_MIB = 1 << 20
_LOW_DISK = 1024 * _MIB  # a journal may grow to 1 GB before it prunes itself
_NO_DISK = 64 * _MIB  # not enough for a WAL and its checkpoint

#: Variables of posthouse that are no settings.
_OTHER_VARIABLES = {HOME_ENV, TEST_CLOCK_ENV, "POSTHOUSE_FENCING_TOKEN", "POSTHOUSE_FAULTS"}


def check_home(home: Home) -> Finding:
    """The home is a directory of this user that nobody else can enter."""
    path = home.path
    if not os.path.lexists(path):
        return ok("home", f"{path} (not made yet)")
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return fail("home", f"{path} is not a directory", "Move it away, or set POSTHOUSE_HOME.")
    if found.st_uid != os.geteuid():
        return fail("home", f"{path} belongs to the user with id {found.st_uid}", "Set POSTHOUSE_HOME.")
    if found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return fail("home", f"{path} has mode {mode}", f"Run `chmod 700 {path}`.")
    return ok("home", str(path))


def check_inside(home: Home) -> Finding:
    """Nothing in the home can be read or written by others."""
    if not home.path.is_dir():
        return ok("files", "none yet")
    seen, wide = 0, []
    for folder, folders, files in os.walk(home.path):
        for name in (*folders, *files):
            path = Path(folder, name)
            seen += 1
            if _is_wide(path):
                wide.append(path)
    if wide:
        hint = f"Run `chmod -R go= {home.path}`; if others may have read a key, make a new one."
        return fail("files", f"{len(wide)} of {seen} can be reached by others, first {wide[0]}", hint)
    return ok("files", f"{seen}, all private")


def check_key(home: Home) -> Finding:
    """There is a key, and it is sound and private."""
    from posthouse.keys import keyfile

    try:
        return ok("key", keyfile.load(home.key).node)
    except PosthouseError as failure:
        if failure.code == "key_file_missing":
            return warn("key", f"{home.key} does not exist", "Run `posthouse keys new`.")
        return fail("key", str(failure), failure.hint)


def check_settings(home: Home) -> Finding:
    """Every setting is valid, wherever it comes from."""
    from posthouse.cli.settings import load

    try:
        values = load().values()
    except PosthouseError as failure:
        return fail("settings", str(failure), failure.hint)
    changed = sum(value.source is not Source.DEFAULT for value in values)
    return ok("settings", f"{len(values)}, {changed} of them changed ({home.config})")


def check_environment(home: Home) -> Finding:
    """No variable looks like a setting and is none: it would be ignored without a word."""
    known = {setting.environment for setting in SETTINGS.values()} | _OTHER_VARIABLES
    unknown = sorted(name for name in os.environ if name.startswith("POSTHOUSE_") and name not in known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`posthouse config` shows every setting."
        return warn("environment", f"{', '.join(unknown)} is no setting", hint)
    return ok("environment", "no unknown variable")


def check_disk(home: Home) -> Finding:
    """There is room on the disk of the home."""
    existing = next(path for path in (home.path, *home.path.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free // _MIB} MiB free at {existing}"
    if free < _NO_DISK:
        return fail("disk", text, "Free space: stores are read-only without it.")
    if free < _LOW_DISK:
        return warn("disk", text, "Free space soon; a journal alone may grow to 1 GB.")
    return ok("disk", text)


def _is_wide(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:  # stores make and remove files while the doctor looks
        return False
    reach = 0o022 if path.name == CONFIG_NAME else 0o077  # settings are no secret, but nobody else's business
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & reach)


CHECKS: tuple[Callable[[Home], Finding], ...] = (
    check_home,
    check_inside,
    check_key,
    check_settings,
    check_environment,
    check_disk,
)
