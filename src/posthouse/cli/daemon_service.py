"""`posthouse daemon install-service` and `uninstall-service`: a systemd user unit or a launchd agent.

Both restart the daemon whatever ends it, except exit code 4: an identity in use elsewhere does not get better by
retrying. launchd cannot exclude an exit code, so a shell turns 4 into success. The unit removes the rights that the
daemon never needs.
"""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import error


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """What the service manager has to know."""

    mesh: str
    #: the program and its arguments, each whole
    command: tuple[str, ...]
    #: directories the daemon writes to
    writes: tuple[Path, ...]
    #: variables it finds in its environment
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the service, the same for one mesh always."""
        return f"posthouse-daemon-{re.sub(r'[^A-Za-z0-9_-]', '_', self.mesh)}"


def program() -> tuple[str, ...]:
    """Return how this posthouse is started, independent of PATH."""
    beside = Path(sys.executable).with_name("posthouse")
    if beside.is_file() and os.access(beside, os.X_OK):
        return (str(beside),)
    found = shutil.which("posthouse")
    return (found,) if found else (sys.executable, "-m", "posthouse.cli.main")


def service_file(name: str, environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return where the definition of a service belongs on this system."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "LaunchAgents" / f"{name}.plist"
    if platform.startswith("linux"):
        config = environ.get("XDG_CONFIG_HOME")
        return (Path(config) if config else home / ".config") / "systemd" / "user" / f"{name}.service"
    raise error("service_unsupported", platform=platform)


_UNIT = """\
[Unit]
Description=posthouse daemon of mesh {mesh}
After=network.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{environment}Restart=always
RestartSec=2
RestartPreventExitStatus=4
KillSignal=SIGTERM
TimeoutStopSec=30
LimitCORE=0
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={writes}
ProtectControlGroups=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=default.target
"""


def systemd_unit(terms: ServiceDefinition) -> str:
    """Return the text of the unit."""
    variables = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in terms.environment.items())
    return _UNIT.format(
        mesh=_plain(terms.mesh),
        command=" ".join(_argument(each) for each in terms.command),
        environment=variables,
        writes=" ".join(_quoted(str(each)) for each in terms.writes),
    )


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return one word as systemd reads it: whole, and without specifiers."""
    escaped = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _argument(text: str) -> str:
    return _quoted(text).replace("$", "$$")


def launchd_plist(terms: ServiceDefinition) -> str:
    """Return the text of the property list."""
    script = f'{shlex.join(terms.command)}; code=$?; [ "$code" -eq {int(Exit.IDENTITY)} ] && exit 0; exit "$code"'
    agent = {
        "Label": terms.name,
        "ProgramArguments": ["/bin/sh", "-c", script],
        "EnvironmentVariables": dict(terms.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ProcessType": "Background",
        "Umask": 0o077,
        "HardResourceLimits": {"Core": 0},
    }
    return plistlib.dumps(agent).decode()


def install_service(
    *,
    relay: Annotated[str | None, Parameter(help="Address of the relay; without it as for `daemon up`.")] = None,
    show: Annotated[bool, Parameter(negative=(), show_default=False, help="Only show it, write nothing.")] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Write a systemd user unit, or on macOS a launchd agent, that runs the daemon and restarts it.

    It is not restarted after exit code 4: an identity that is in use elsewhere does not get better by trying.

    For example:

        posthouse daemon install-service
        posthouse daemon install-service --mesh team --relay relay.example:7420
        posthouse daemon install-service --show --json
    """
    from posthouse.files import write_atomic

    terms = _define_service(daemon_options, relay)
    path = service_file(terms.name)
    text = launchd_plist(terms) if path.suffix == ".plist" else systemd_unit(terms)
    value = {"service": terms.name, "path": path, "text": text, "written": not show}
    if show:
        output.result(value, text.rstrip("\n"))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode(), mode=0o644)
    output.result(value, f"wrote {path}")
    output.note(f"start it now and at every login: {_start_command(path, terms.name)}")


def _define_service(daemon_options: DaemonOptions, relay: str | None) -> ServiceDefinition:
    from posthouse.files import HOME_ENV, home_directory
    from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

    mesh = validate_mesh_name(daemon_options.mesh or DEFAULT_MESH)
    directory = daemon_options.location().directory
    words = ["daemon", "up", "--foreground", "--persistent", "--mesh", mesh, "--dir", str(directory)]
    if relay is not None:
        words += ["--relay", relay]
    home = home_directory()
    environment = {HOME_ENV: str(home)} if HOME_ENV in os.environ else {}
    writes = (home,) if directory.is_relative_to(home) else (home, directory)
    for each in writes:  # the unit's sandbox needs them to exist
        _make(each)
    return ServiceDefinition(mesh, (*program(), *words), writes, environment)


def _make(directory: Path) -> None:
    from posthouse.files import private_dir

    private_dir(directory)


def _start_command(path: Path, name: str) -> str:
    if sys.platform == "darwin":
        return f"launchctl bootstrap gui/{os.getuid()} {path}"
    return f"systemctl --user daemon-reload && systemctl --user enable --now {name}"


def uninstall_service(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Remove what `install-service` wrote; a daemon that runs goes on until it is ended.

    For example:

        posthouse daemon uninstall-service
        posthouse daemon uninstall-service --mesh team --json
    """
    from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

    mesh = validate_mesh_name(daemon_options.mesh or DEFAULT_MESH)
    name = ServiceDefinition(mesh, (), (), {}).name
    path = service_file(name)
    was_there = path.exists()
    path.unlink(missing_ok=True)
    output.result({"service": name, "path": path, "removed": was_there}, f"removed {path}" if was_there else "none")
    if was_there:
        stop = f"launchctl bootout gui/$(id -u)/{name}" if sys.platform == "darwin" else f"systemctl --user stop {name}"
        output.note(f"end the one that runs: {stop}")
