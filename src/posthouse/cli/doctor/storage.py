"""Checks of what a user has: the home directory, the key, the settings, room on the disk.

They look and never repair: a mode that is too wide may mean that somebody read the file.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from posthouse.cli.doctor.finding import Finding, fail, ok, warn
from posthouse.cli.home import Home
from posthouse.model.errors import PosthouseError

_MIB = 1 << 20
_LOW_DISK = 1024 * _MIB  # a journal may grow to 1 GB before it prunes itself
_NO_DISK = 64 * _MIB  # not enough for a WAL and its checkpoint


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
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & 0o077)


CHECKS: tuple[Callable[[Home], Finding], ...] = (check_home, check_inside, check_key, check_disk)
