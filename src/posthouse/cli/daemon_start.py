"""Starting a daemon: its options and settings, in the foreground or as a detached process.

config.toml in the daemon's directory has the form of the one in the home directory and overrides it; the first start
records the relay there. The detached child runs `daemon up --foreground --json` in a session of its own: one line on
its stdout means that its socket answers; a child that ends earlier has written its error on stderr, which is raised
here. uvloop and posthouse.daemon are imported inside the functions that run the daemon.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from posthouse.cli.config import load_settings, read_settings_file
from posthouse.cli.options import DaemonOptions
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.daemon.daemon import Daemon
    from posthouse.daemon.settings import DaemonSettings
    from posthouse.model.settings_sources import Resolved

DAEMON_CONFIG_NAME = "config.toml"
_CONFIG_HEADER = "# Settings of this daemon: the same names as in config.toml of the home, which these go before.\n"


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What the command line says beside settings."""

    daemon_options: DaemonOptions
    relay: str | None
    is_ephemeral: bool | None
    ttl_s: float | None
    tcp: Literal["auto", "off"]

    def tokens(self) -> list[str]:
        """Return the options that say the same to another process."""
        options = {
            "--mesh": self.daemon_options.mesh,
            "--dir": str(self.daemon_options.location().directory),
            "--relay": self.relay,
            "--ttl": None if self.ttl_s is None else f"{self.ttl_s:.0f}s",
        }
        switches = {
            "--ephemeral": self.is_ephemeral is True,
            "--persistent": self.is_ephemeral is False,
            "--no-tcp": self.tcp == "off",
        }
        given = [part for name, value in options.items() if value is not None for part in (name, value)]
        return given + [name for name, is_given in switches.items() if is_given]


def daemon_settings(
    wish: StartOptions, flags: Mapping[str, Any] | None
) -> tuple[DaemonSettings, Mapping[str, Resolved]]:
    """Return what the daemon is started with, and all settings."""
    from posthouse.client import ClientOptions
    from posthouse.daemon.identity import is_ephemeral_by_default
    from posthouse.daemon.settings import ClonePolicy, DaemonSettings, Retention
    from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

    mesh = validate_mesh_name(wish.daemon_options.mesh or DEFAULT_MESH)
    directory = wish.daemon_options.location().directory
    values = _values(directory, {**(flags or {}), "client.relay": wish.relay})
    max_age_h, tls_ca = values["outbox.max_age_h"].value, values["client.tls_ca"].value
    lake = values["journal.lake"].value
    is_ephemeral = is_ephemeral_by_default() if wish.is_ephemeral is None else wish.is_ephemeral
    settings = DaemonSettings(
        directory=directory,
        relay=_relay(values, mesh, directory, wish.relay),
        mesh=mesh,
        is_ephemeral=is_ephemeral,
        ttl_s=wish.ttl_s,
        tcp=wish.tcp,
        clone_policy=ClonePolicy(str(values["clone.policy"].value)),
        outbox_max_age_h=None if max_age_h is None else int(str(max_age_h)),
        outbox_max_bytes=int(str(values["outbox.max_bytes"].value)),
        inbox_keep_days=int(str(values["inbox.keep_days"].value)),
        retention=Retention(
            keep_days=int(str(values["journal.keep_days"].value)),
            max_bytes=int(str(values["journal.max_bytes"].value)),
            lake=None if lake is None else str(lake),
        ),
        bus_dir=Path(str(values["bus.dir"].value)).expanduser() if values["daemon.bridge"].value else None,
        client=ClientOptions(
            tls_ca=None if tls_ca is None else Path(str(tls_ca)).expanduser(),
            allow_plain=bool(values["client.allow_plain"].value),
            publish_timeout_s=float(str(values["client.timeout_s"].value)),
        ),
    )
    return settings, values


def record_relay(settings: DaemonSettings) -> None:
    """Write the relay down for later starts; settings that somebody else wrote are left alone."""
    from posthouse.files import private_dir, write_atomic

    directory = private_dir(settings.directory)
    path, before = directory / DAEMON_CONFIG_NAME, recorded_relay(directory)
    if not path.exists() or (before is not None and path.read_text(encoding="utf-8") == _relay_record(before)):
        write_atomic(path, _relay_record(settings.relay).encode(), mode=0o644)


def _relay_record(relay: str) -> str:
    import json

    return f"{_CONFIG_HEADER}[client]\nrelay = {json.dumps(relay)}\n"


def recorded_relay(directory: Path) -> str | None:
    """Return the relay that a daemon's own settings name."""
    relay = read_settings_file(directory / DAEMON_CONFIG_NAME).get("client", {}).get("relay")
    return relay if isinstance(relay, str) else None


def _values(directory: Path, flags: Mapping[str, Any]) -> dict[str, Resolved]:
    own = read_settings_file(directory / DAEMON_CONFIG_NAME)
    if not own:
        return load_settings(flags)
    return load_settings(flags, own=own)


def _relay(values: Mapping[str, Resolved], mesh: str, directory: Path, given: str | None) -> str:
    """Return the address of the relay: the option, the daemon's own note, where the mesh was joined, the setting."""
    from posthouse.client import Memberships, parse_relay_url

    allow_plain = bool(values["client.allow_plain"].value)
    is_named = given is not None or recorded_relay(directory) is not None
    joined = None if is_named else Memberships.of_home().get(mesh)
    address = joined.relay if joined is not None else str(values["client.relay"].value)
    return parse_relay_url(address, allow_plain=allow_plain).origin


START_S = 60.0
_LINE_MAX_BYTES = 1 << 16


def start_detached(tokens: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Start `posthouse daemon up` with these options and return what it says once it is ready."""
    import msgspec

    command = [sys.executable, "-m", "posthouse.cli.main", "daemon", "up", "--foreground", "--json", *tokens]
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors:
        try:
            pid = _spawn(command, environ, writing, errors)
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as told:
            line = _read_line(told, pid)
        if line is None:
            raise _failure(os.waitpid(pid, 0)[1], errors)
    value: dict[str, Any] = msgspec.json.decode(line)
    return value


def _spawn(command: Sequence[str], environ: Mapping[str, str], writing: int, errors: IO[bytes]) -> int:
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_DUP2, null, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
    ]
    try:
        return os.posix_spawn(command[0], list(command), environ, file_actions=actions, setsid=True)
    finally:
        os.close(null)


def _read_line(told: IO[bytes], pid: int) -> bytes | None:
    """Return the child's line, or None when it ended without one."""
    clock = system_clock()
    end_ns = clock.boot_ns() + round(START_S * 1e9)
    line = b""
    while not line.endswith(b"\n"):
        left_s = (end_ns - clock.boot_ns()) / 1e9
        if left_s <= 0 or not select.select([told], [], [], left_s)[0]:
            raise error("daemon_start_slow", seconds=START_S, pid=pid)
        part = told.read(_LINE_MAX_BYTES)
        if not part:
            return None
        line += part
    return line


def _failure(status: int, errors: IO[bytes]) -> PosthouseError:
    import msgspec

    from posthouse.client.failures import error_from

    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    for line in reversed(lines):
        try:
            problem = msgspec.json.decode(line, type=dict[str, Any])
        except ValueError:
            continue
        if "code" in problem:
            return error_from(problem, "the daemon")
    reason = lines[-1] if lines else f"exit {os.waitstatus_to_exitcode(status)}"
    return error("internal", reason=f"the daemon did not start: {reason}")


def run_daemon(settings: DaemonSettings, values: Mapping[str, Resolved], on_ready: Callable[[Daemon], None]) -> None:
    """Run a daemon until SIGTERM, SIGINT or its own end; raises what ended it. `on_ready`: its socket answers."""
    import uvloop

    from posthouse.cli.log import LogFile, log_to_file
    from posthouse.files import private_dir

    log = LogFile(private_dir(settings.directory) / "daemon.log")
    log_to_file(log, values)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, on_ready))
    finally:
        log.close()


async def _serve(settings: DaemonSettings, on_ready: Callable[[Daemon], None]) -> None:
    from posthouse.daemon.daemon import Daemon
    from posthouse.http.server import freeze_heap

    daemon = Daemon(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.end)
    await daemon.start()
    try:
        freeze_heap()
        on_ready(daemon)
        await daemon.wait()
    finally:
        await daemon.stop()
