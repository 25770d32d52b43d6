"""`posthouse doctor`: check this installation, one line per check; exit code 1 if a check fails.

Checks of the machine (interpreter, libraries, kernel limits, clock), of the home directory (permissions, key,
settings, disk space) and of the daemons that run from it (stores, relay, clock). Checks never repair: a file mode that
is too wide may mean that another user has read the file. A check that raises OSError is itself a finding, and the
remaining checks still run.
"""

from __future__ import annotations

import difflib
import os
import platform
import resource
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from posthouse.cli.config import CONFIG_NAME, Home, find_home
from posthouse.cli.output import PLAIN, Output, table
from posthouse.extras import installed_extras
from posthouse.files import HOME_ENV
from posthouse.model.address import AGENT_ENV
from posthouse.model.clock import TEST_CLOCK_ENV, SteppedClock, system_clock
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError
from posthouse.model.settings import SETTINGS
from posthouse.model.settings_sources import Source

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client.daemon import Health


State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    name: str
    state: State
    text: str
    #: What to do; empty if the check passed.
    hint: str = ""


def ok(name: str, text: str) -> Finding:
    return Finding(name, "ok", text)


def warn(name: str, text: str, hint: str) -> Finding:
    return Finding(name, "warn", text, hint)


def fail(name: str, text: str, hint: str) -> Finding:
    return Finding(name, "fail", text, hint)


_INOTIFY = Path("/proc/sys/fs/inotify")
_MIN_WATCHES = 8192  # a watch per mailbox, with room for the other programs of the user
_MIN_INSTANCES = 128  # one per open bus
_NEAR_LIMIT = 0.8  # of a limit that other programs share
_MIN_OPEN_FILES = 1024  # a mailbox server holds a lock file, a relay a socket per reader
_OLDEST_SANE_S = 1_735_689_600  # 2025-01-01: an earlier time means that the clock was never set
_NS = 1_000_000_000


def check_python() -> Finding:
    """Check that Python runs from a virtual environment, which a system upgrade does not break."""
    text = f"{platform.python_version()} at {sys.prefix}"
    if sys.prefix == sys.base_prefix:
        return warn("python", text, "Install posthouse into a virtual environment of its own.")
    return ok("python", text)


def check_sqlite() -> Finding:
    """Check that SQLite has the fix for the WAL corruption of older versions."""
    from posthouse.sqlite.connection import SAFE_VERSION, library_version

    version = ".".join(map(str, library_version()))
    if library_version() < SAFE_VERSION:
        return fail("sqlite", f"{version} can corrupt a store", "Upgrade it: `pip install -U apsw`.")
    return ok("sqlite", version)


def list_extras() -> Finding:
    """List which extras are installed; each is optional."""
    return ok("extras", ", ".join(installed_extras()) or "none")


def check_ssh_keygen() -> Finding:
    """Check that ssh-keygen is installed, for signing with OpenSSH keys."""
    path = shutil.which("ssh-keygen")
    if path is None:
        return warn("ssh-keygen", "not found", "Install openssh-client to sign with OpenSSH keys.")
    return ok("ssh-keygen", path)


def check_inotify() -> Iterator[Finding]:
    """Check that the kernel allows this user to watch enough mailboxes."""
    for name, least in (("max_user_watches", _MIN_WATCHES), ("max_user_instances", _MIN_INSTANCES)):
        path = _INOTIFY / name
        if not path.exists():
            yield warn(
                f"inotify {name}", "unknown", "Without inotify the bus uses watchfiles, which reports changes later."
            )
            continue
        value = int(path.read_text())
        if value < least:
            hint = f"Run `sysctl fs.inotify.{name}={least}` as root."
            yield warn(f"inotify {name}", f"{value} is below {least}", hint)
        else:
            yield ok(f"inotify {name}", str(value))


def check_inotify_use() -> Finding:
    """Check that the programs of this user leave inotify instances for posthouse."""
    name, path = "inotify instances in use", _INOTIFY / "max_user_instances"
    if not path.exists():
        return ok(name, "unknown")
    most, used = int(path.read_text()), _inotify_instances()
    if used >= most * _NEAR_LIMIT:
        hint = f"Close programs that watch files, or run `sysctl fs.inotify.max_user_instances={2 * most}` as root."
        return warn(name, f"{used} of {most}", hint)
    return ok(name, f"{used} of {most}")


def _inotify_instances() -> int:
    """Count the inotify descriptors of all processes of this user."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or belongs to another user
            if process.stat().st_uid == os.geteuid():
                count += sum(_is_inotify(fd) for fd in (process / "fd").iterdir())
    return count


def _is_inotify(fd: Path) -> bool:
    with suppress(OSError):
        return str(fd.readlink()) == "anon_inode:inotify"
    return False


def check_open_files() -> Finding:
    """Check that a process may open enough files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _MIN_OPEN_FILES:
        return warn("open files", f"{soft} of {hard}", f"Run `ulimit -n {_MIN_OPEN_FILES}` before posthouse.")
    return ok("open files", str(soft))


def check_clock() -> Finding:
    """Check that the clock is set and is not a test clock."""
    clock = system_clock()
    if isinstance(clock, SteppedClock):
        plain = system_clock({})
        wall_s = round((clock.wall_ns() - plain.wall_ns()) / _NS)
        boot_s = round((clock.boot_ns() - plain.boot_ns()) / _NS)
        text = f"stepped by {clock.offsets}: wall {wall_s:+d} s, boot {boot_s:+d} s"
        return warn("clock", text, "Unset POSTHOUSE_TEST_CLOCK outside of tests.")
    if clock.wall_ns() < _OLDEST_SANE_S * _NS:
        return fail("clock", "the time is before 2025", "Set the clock; events with such a date are refused.")
    return ok("clock", f"boot {clock.boot_id}")


SYSTEM_CHECKS: tuple[Callable[[], Finding | Iterator[Finding]], ...] = (
    check_python,
    check_sqlite,
    list_extras,
    check_ssh_keygen,
    check_inotify,
    check_inotify_use,
    check_open_files,
    check_clock,
)
_MIB = 1 << 20
_LOW_DISK = 1024 * _MIB  # a journal may grow to 1 GB before it prunes itself
_NO_DISK = 64 * _MIB  # not enough for a WAL and its checkpoint
_DAEMON_S = 10.0  # for the answer of a daemon on this machine
#: Environment variables of posthouse that are not settings.
_OTHER_VARIABLES = {HOME_ENV, TEST_CLOCK_ENV, AGENT_ENV, "POSTHOUSE_FENCING_TOKEN", "POSTHOUSE_FAULTS"}


def check_home(home: Home) -> Finding:
    """Check that the home directory belongs to this user and that no other user can enter it."""
    path = home.path
    if not os.path.lexists(path):
        above = next(each for each in path.parents if each.exists())
        if not os.access(above, os.W_OK):
            return fail(
                "home", f"{path} cannot be created in {above}", "Set POSTHOUSE_HOME, or let this user write there."
            )
        return ok("home", f"{path} (does not exist yet)")
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return fail("home", f"{path} is not a directory", "Move it away, or set POSTHOUSE_HOME.")
    if found.st_uid != os.geteuid():
        return fail("home", f"{path} belongs to the user with id {found.st_uid}", "Set POSTHOUSE_HOME.")
    if found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return fail("home", f"{path} has mode {mode}", f"Run `chmod 700 {path}`.")
    if not os.access(path, os.W_OK):
        return fail("home", f"{path} cannot be written", "Set POSTHOUSE_HOME, or mount its file system for writing.")
    return ok("home", str(path))


def check_inside(home: Home) -> Finding:
    """Check that no other user can read or write files in the home directory."""
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
        hint = f"Run `chmod -R go= {home.path}`; if other users may have read a key, create a new one."
        return fail("files", f"{len(wide)} of {seen} can be accessed by other users, first {wide[0]}", hint)
    return ok("files", f"{seen}, all private")


def check_key(home: Home) -> Finding:
    """Check that there is a valid key file that only this user can read."""
    from posthouse.cli.options import key_path
    from posthouse.keys import keyfile

    try:
        return ok("key", keyfile.load(key_path(None)).node)
    except PosthouseError as failure:
        if failure.code == "key_file_missing":
            return warn("key", f"{home.key} does not exist", "Run `posthouse up`, `posthouse join` or `keys new`.")
        return fail("key", str(failure), failure.hint)


def check_identities(home: Home) -> Finding:
    """Check that commands and daemon act with one key in each mesh."""
    from posthouse.cli.options import has_adopted
    from posthouse.daemon.directory import DaemonDirectory

    daemon = DaemonDirectory(home.path / "daemon")
    meshes = [mesh for mesh in daemon.meshes() if daemon.mesh(mesh).key.exists()]
    two = [mesh for mesh in meshes if home.key.exists() and not has_adopted(daemon.mesh(mesh).root)]
    if two:
        text = f"in {', '.join(two)} commands act with the home key and the daemon with its own"
        return ok("identities", f"{text}; `posthouse daemon adopt --mesh {two[0]}` moves the rights to the daemon's")
    return ok("identities", f"one key for each mesh: {', '.join(meshes)}" if meshes else "none yet")


def check_settings(home: Home) -> Finding:
    """Check that every setting is valid, whatever its source."""
    from posthouse.cli.config import load_settings

    try:
        values = load_settings().values()
    except PosthouseError as failure:
        return fail("settings", str(failure), failure.hint)
    changed = sum(value.source is not Source.DEFAULT for value in values)
    return ok("settings", f"{len(values)}, {changed} of them changed: see `posthouse config`")


def check_environment(home: Home) -> Finding:
    """Check that no POSTHOUSE_ variable is an unknown setting, which would be ignored silently."""
    known = {setting.environment for setting in SETTINGS.values()} | _OTHER_VARIABLES
    unknown = sorted(name for name in os.environ if name.startswith("POSTHOUSE_") and name not in known)
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"Did you mean {close[0]}?" if close else "`posthouse config` shows every setting."
        return warn("environment", f"{', '.join(unknown)} is not a setting", hint)
    return ok("environment", "no unknown variable")


def check_bus_files(home: Home) -> Finding:
    """Check the access rules and the limits of the bus: a broken rule file denies every message."""
    from posthouse.bus.options import default_directory
    from posthouse.cli.bus_limits import broken_files

    directory = default_directory(os.environ)
    for name, failure in broken_files(directory):
        return fail("bus files", f"{directory / name}: {failure}", failure.hint)
    return ok("bus files", f"the rules and limits in {directory} are valid")


def check_disk(home: Home) -> Finding:
    """Check that the disk of the home directory has free space."""
    existing = next(path for path in (home.path, *home.path.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free // _MIB} MiB free at {existing}"
    if free < _NO_DISK:
        return fail("disk", text, "Free some space: without it stores are read-only.")
    if free < _LOW_DISK:
        return warn("disk", text, "Free some space soon: a journal may grow to 1 GB.")
    return ok("disk", text)


def check_daemons(home: Home) -> Iterator[Finding]:
    """Check that each running daemon can write, reaches its relay and agrees with it about the time."""
    from posthouse.client.daemon import DaemonClient
    from posthouse.client.daemon.locate import DaemonAddress, DaemonState, daemon_state

    root = home.path / "daemon"
    for directory in (root, *sorted(path for path in root.glob("*") if path.is_dir())):
        if daemon_state(DaemonAddress(directory)) is not DaemonState.LISTENING:
            continue
        name = "daemon" if directory == root else f"daemon {directory.name}"
        try:
            with DaemonClient(directory, timeout_s=_DAEMON_S) as daemon:
                yield from _examine_daemon(name, daemon.health())
        except PosthouseError as failure:
            report = warn if failure.code == "mesh_not_served" else fail  # a host that has left its last mesh
            yield report(name, str(failure), failure.hint)


def _examine_daemon(name: str, health: Health) -> Iterator[Finding]:
    if not health.writable:
        states = f"outbox {health.outbox_state}, inbox {health.inbox_state}, agents {health.agents_state}"
        yield fail(name, f"it cannot write: {states}", "Free space on its disk; writing then resumes automatically.")
    elif health.connected:
        yield ok(name, f"connected to {health.relay}")
    else:
        reason = health.relay_error or f"it is not connected to {health.relay}"
        yield warn(name, reason, "Messages wait in the outbox. `posthouse daemon logs` shows more.")
    if health.parked_events:
        text = f"the commands of [[hook]] keep failing for {health.parked_events} events"
        yield warn(
            f"{name} hooks", text, "`posthouse daemon hooks` shows them; they are tried again until they succeed."
        )
    if health.clock_warning is not None:
        report = warn if health.clock_trusted else fail
        yield report("clock", health.clock_warning, "Set the clock, for example with `timedatectl set-ntp true`.")


def _is_wide(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:  # stores create and remove files meanwhile
        return False
    refused = 0o022 if path.name == CONFIG_NAME else 0o077  # settings may be read by others, not written
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & refused)


HOME_CHECKS: tuple[Callable[[Home], Finding | Iterator[Finding]], ...] = (
    check_home,
    check_inside,
    check_key,
    check_identities,
    check_settings,
    check_environment,
    check_bus_files,
    check_disk,
    check_daemons,
)
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(*, output: Output = PLAIN) -> int:
    """Check this installation and show how to fix what is wrong.

    For example:

        posthouse doctor
        posthouse doctor --json
    """
    findings = list(_examine())
    is_healthy = all(finding.state != "fail" for finding in findings)
    value = {"healthy": is_healthy, "checks": [asdict(finding) for finding in findings]}
    output.result(value, _show(findings))
    return Exit.OK if is_healthy else Exit.REFUSED


def _examine() -> Iterator[Finding]:
    home = find_home()
    for check in SYSTEM_CHECKS:
        yield from _run_check(check.__name__, check)
    for home_check in HOME_CHECKS:
        yield from _run_check(home_check.__name__, partial(home_check, home))


def _run_check(name: str, check: Callable[[], Finding | Iterator[Finding]]) -> Iterator[Finding]:
    try:
        found = check()
        yield from [found] if isinstance(found, Finding) else found
    except OSError as failure:  # the other checks still run
        yield fail(name.removeprefix("check_"), str(failure), "Give this user permission to read it.")


def _show(findings: list[Finding]) -> RenderableType:
    from rich.text import Text

    rows = [
        (Text(finding.state, _STYLES[finding.state]), finding.name, finding.text, finding.hint) for finding in findings
    ]
    return table(("state", "check", "result", "what to do"), rows)
