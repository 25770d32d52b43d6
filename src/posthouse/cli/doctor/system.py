"""Checks of the machine: interpreter, libraries, kernel limits, clock."""

from __future__ import annotations

import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from posthouse.cli.doctor.finding import Finding, fail, ok, warn
from posthouse.model.clock import SteppedClock, system_clock

_INOTIFY = Path("/proc/sys/fs/inotify")
_MIN_WATCHES = 8192  # a watch per mailbox, with room for the other programs of the user
_MIN_INSTANCES = 128  # one per open bus
_MIN_OPEN_FILES = 1024  # a mailbox server holds a lock file, a relay a socket per reader
_OLDEST_SANE_S = 1_735_689_600  # 2025-01-01: a clock before that was never set
_NS = 1_000_000_000


def check_python() -> Finding:
    """Python runs from a virtual environment, so that an upgrade of the system does not break posthouse."""
    text = f"{platform.python_version()} at {sys.prefix}"
    if sys.prefix == sys.base_prefix:
        return warn("python", text, "Install posthouse into a virtual environment of its own.")
    return ok("python", text)


def check_sqlite() -> Finding:
    """The SQLite in use does not have the WAL corruption that older ones have."""
    from posthouse.sqlite.library import SAFE_VERSION, library_version

    version = ".".join(map(str, library_version()))
    if library_version() < SAFE_VERSION:
        return fail("sqlite", f"{version} can corrupt a store", "Upgrade it: `pip install -U apsw`.")
    return ok("sqlite", version)


def check_relay_extra() -> Finding:
    """The libraries of the relay and its client are installed."""
    missing = [name for name in ("aiohttp", "uvloop", "prometheus_client") if find_spec(name) is None]
    if missing:
        return warn("relay extra", f"{', '.join(missing)} missing", "Run `pip install 'posthouse[relay]'`.")
    return ok("relay extra", "installed")


def check_ssh_keygen() -> Finding:
    """ssh-keygen is there for those who sign with it."""
    path = shutil.which("ssh-keygen")
    if path is None:
        return warn("ssh-keygen", "not found", "Install openssh-client to sign with OpenSSH keys.")
    return ok("ssh-keygen", path)


def check_inotify() -> Iterator[Finding]:
    """The kernel lets this user watch enough mailboxes."""
    for name, least in (("max_user_watches", _MIN_WATCHES), ("max_user_instances", _MIN_INSTANCES)):
        path = _INOTIFY / name
        if not path.exists():
            yield warn(f"inotify {name}", "unknown", "Without inotify mail is found by polling.")
            continue
        value = int(path.read_text())
        if value < least:
            hint = f"Run `sysctl fs.inotify.{name}={least}` as root."
            yield warn(f"inotify {name}", f"{value} is below {least}", hint)
        else:
            yield ok(f"inotify {name}", str(value))


def check_open_files() -> Finding:
    """The process may open enough files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _MIN_OPEN_FILES:
        return warn("open files", f"{soft} of {hard}", f"Run `ulimit -n {_MIN_OPEN_FILES}` before posthouse.")
    return ok("open files", str(soft))


def check_clock() -> Finding:
    """The clock is set, and is the machine's own."""
    clock = system_clock()
    if isinstance(clock, SteppedClock):
        plain = system_clock({})
        wall_s = round((clock.wall_ns() - plain.wall_ns()) / _NS)
        boot_s = round((clock.boot_ns() - plain.boot_ns()) / _NS)
        text = f"stepped by {clock.offsets}: wall {wall_s:+d} s, boot {boot_s:+d} s"
        return warn("clock", text, "Unset POSTHOUSE_TEST_CLOCK outside of tests.")
    if clock.wall_ns() < _OLDEST_SANE_S * _NS:
        return fail("clock", "it is before 2025", "Set the clock; events with such a date are refused.")
    return ok("clock", f"boot {clock.boot_id}")


CHECKS: tuple[Callable[[], Finding | Iterator[Finding]], ...] = (
    check_python,
    check_sqlite,
    check_relay_extra,
    check_ssh_keygen,
    check_inotify,
    check_open_files,
    check_clock,
)
