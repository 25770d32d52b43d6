"""Starting a daemon: its options and settings, the process that already runs, and the directory of a mesh.

config.toml in the directory of a mesh has the same form as the one in the home directory and overrides it for that
mesh; the first start records the relay there. The server and posthouse.daemon are imported inside the functions
that run the daemon.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posthouse.cli.config import Settings, load_hooks, load_settings, read_settings_file, setting_tokens
from posthouse.cli.options import DaemonOptions, client_options
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.daemon.daemon import Daemon
    from posthouse.daemon.directory import MeshDirectory
    from posthouse.daemon.settings import DaemonSettings, MeshSettings
    from posthouse.model.settings_sources import Resolved

DAEMON_CONFIG_NAME = "config.toml"
#: part of a format: a file with another header belongs to the user and is not rewritten
_CONFIG_HEADER = "# Settings of this daemon: the same names as in config.toml of the home, which these go before.\n"


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of `daemon up` that are not settings."""

    daemon_options: DaemonOptions
    relay: str | None
    is_ephemeral: bool | None
    ttl_s: float | None
    tcp: Literal["auto", "off"]

    def tokens(self) -> list[str]:
        """Return the command-line options that give another process these values."""
        options = {
            "--mesh": self.daemon_options.mesh,
            "--dir": None if self.daemon_options.directory is None else str(self.daemon_options.root()),
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


def daemon_settings(options: StartOptions, flags: Mapping[str, Any] | None) -> tuple[DaemonSettings, Settings]:
    """Return the settings of the daemon with every mesh of its directory, and all settings."""
    from posthouse.client import Memberships
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.daemon.identity import is_ephemeral_by_default
    from posthouse.daemon.settings import DaemonSettings

    root = options.daemon_options.root()
    named, given = options.daemon_options.chosen_mesh(), flags or {}
    is_ephemeral = options.is_ephemeral
    if is_ephemeral is None:  # a machine that has an identity keeps using it
        is_ephemeral = is_ephemeral_by_default() and not DaemonDirectory(root).is_persistent
    others = [] if is_ephemeral else [mesh for mesh in DaemonDirectory(root).meshes() if mesh != named]

    def load_mesh(mesh: str, relay: str | None) -> MeshSettings:
        if relay is not None:
            record_relay(root / mesh, relay)
        return _mesh_settings(root, mesh, relay, given, is_ephemeral=is_ephemeral)

    values = _load_values(root / named, given)
    settings = DaemonSettings(
        directory=root,
        meshes=(
            _mesh_settings(root, named, options.relay, given, is_ephemeral=is_ephemeral),
            *(load_mesh(mesh, None) for mesh in others),
        ),
        ttl_s=options.ttl_s,
        tcp="on" if options.tcp == "auto" and values.integer("mcp.port") else options.tcp,
        port=values.integer("mcp.port"),
        tool_wait_max_s=values.integer("mcp.wait_max_s"),
        reports_usage=values.is_on("daemon.report_usage"),
        otlp_url=values.optional_text("daemon.otlp_url"),
        trace_ratio=values.number("daemon.trace_ratio"),
        hooks=load_hooks(),
        load_mesh=load_mesh,
        chosen_mesh=Memberships.of_home().chosen if options.daemon_options.directory is None else lambda: named,
    )
    return settings, values


def _mesh_settings(
    root: Path, mesh: str, relay: str | None, flags: Mapping[str, Any], *, is_ephemeral: bool
) -> MeshSettings:
    from posthouse.daemon.settings import ClonePolicy, MeshSettings, Retention

    directory = root / mesh
    if not directory.exists() and (root / DAEMON_CONFIG_NAME).exists():  # a directory of an earlier version
        directory = root
    values = _load_values(directory, {**flags, "client.relay": relay})
    has_max_age, has_lake = (values[name].value is not None for name in ("outbox.max_age_h", "journal.lake"))
    return MeshSettings(
        mesh=mesh,
        relay=_relay(values, mesh, directory, relay),
        is_ephemeral=is_ephemeral,
        clone_policy=ClonePolicy(values.text("clone.policy")),
        outbox_max_age_h=values.integer("outbox.max_age_h") if has_max_age else None,
        outbox_max_bytes=values.integer("outbox.max_bytes"),
        inbox_keep_days=values.integer("inbox.keep_days"),
        retention=Retention(
            keep_days=values.integer("journal.keep_days"),
            max_bytes=values.integer("journal.max_bytes"),
            lake=values.text("journal.lake") if has_lake else None,
        ),
        bus_dir=values.path("bus.dir") if values.is_on("daemon.bridge") else None,
        client=client_options(values),
    )


def record_relay(directory: Path, relay: str) -> None:
    """Record the relay of a mesh for later starts, unless the file has settings that were not written here."""
    from posthouse.files import private_dir, write_atomic

    path, before = private_dir(directory) / DAEMON_CONFIG_NAME, recorded_relay(directory)
    if not path.exists() or (before is not None and path.read_text(encoding="utf-8") == _relay_record(before)):
        write_atomic(path, _relay_record(relay).encode())


def _relay_record(relay: str) -> str:
    import json

    return f"{_CONFIG_HEADER}[client]\nrelay = {json.dumps(relay)}\n"


def recorded_relay(directory: Path) -> str | None:
    """Return the relay in the settings file of a mesh, if any."""
    relay = read_settings_file(directory / DAEMON_CONFIG_NAME).get("client", {}).get("relay")
    return relay if isinstance(relay, str) else None


def _load_values(directory: Path, flags: Mapping[str, Any]) -> Settings:
    return load_settings(flags, own=read_settings_file(directory / DAEMON_CONFIG_NAME))


def _relay(values: Settings, mesh: str, directory: Path, given: str | None) -> str:
    """Return the relay: from the option, else the mesh's own file, its membership, or the setting."""
    from posthouse.client import Memberships, parse_relay_url

    is_named = given is not None or recorded_relay(directory) is not None
    joined = None if is_named else Memberships.of_home().get(mesh)
    address = joined.relay if joined is not None else values.text("client.relay")
    return str(parse_relay_url(address, allow_plain=values.is_on("client.allow_plain")))


def run_daemon(settings: DaemonSettings, values: Mapping[str, Resolved], on_ready: Callable[[Daemon], None]) -> None:
    """Run a daemon until SIGTERM, SIGINT or a failure, which is raised; `on_ready` runs once its socket answers."""
    from posthouse.cli.log import LogFile, log_to_file
    from posthouse.files import private_dir
    from posthouse.http.server import new_event_loop

    log = LogFile(private_dir(settings.directory) / "daemon.log")
    log_to_file(log, values)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
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


def ensure_daemon(options: StartOptions, flags: dict[str, Any]) -> dict[str, Any]:
    """Make the daemon serve the mesh, starting it in the background if none runs; return its description."""
    from posthouse.cli.detach import start_detached

    running = _join_running(options)
    if running is not None:
        return running
    words = ("daemon", "up", "--foreground", "--json", *options.tokens(), *setting_tokens(flags))
    return start_detached("daemon", words, slow="daemon_start_slow")


def _join_running(options: StartOptions) -> dict[str, Any] | None:
    """Make a daemon that already runs serve the mesh, and return its description; None if none runs."""
    location = options.daemon_options.location()
    pid = daemon_pid(options.daemon_options)
    if pid is None or location.is_former:
        return None
    if options.is_ephemeral:
        raise error("daemon_running", directory=str(location.directory))
    with options.daemon_options.client() as daemon:
        health = daemon.add_mesh(options.daemon_options.chosen_mesh(), options.relay)
    return {
        "node": health.node,
        "mesh": health.mesh,
        "relay": health.relay,
        "directory": str(location.directory),
        "socket": str(location.socket),
        "port": None,
        "pid": pid,
        "is_ephemeral": health.is_ephemeral,
    }


def daemon_pid(daemon_options: DaemonOptions) -> int | None:
    """Return the id of the process that owns the socket, as the kernel reports it: a pid file may be stale."""
    from posthouse.client.daemon.locate import SocketAddress

    location = daemon_options.location()
    if not location.socket.exists():
        return None
    address = SocketAddress(location)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5)
            connection.connect(address.path)
            return _peer_pid(connection)
    except (ConnectionRefusedError, FileNotFoundError):
        return None
    finally:
        address.close()


def _peer_pid(connected: socket.socket) -> int:
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        return int(struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
    local_level, local_peer_pid = 0, 2  # SOL_LOCAL and LOCAL_PEERPID of macOS, which Python has no names for
    return int(connected.getsockopt(local_level, local_peer_pid))


def existing_mesh(daemon_options: DaemonOptions) -> MeshDirectory:
    """Return the directory of a mesh, or raise a usage error that names it if it does not exist."""
    from posthouse.daemon.directory import DaemonDirectory

    daemon, mesh = DaemonDirectory(daemon_options.root()), daemon_options.chosen_mesh()
    if daemon.root.is_dir():
        daemon.upgrade_stopped(mesh)
    directory = daemon.mesh(mesh)
    if not directory.root.is_dir():
        text = f"there is no daemon of mesh {mesh} in {daemon.root}"
        raise error("usage", text=text, hint="Give its directory with --dir, or its --mesh.")
    return directory
