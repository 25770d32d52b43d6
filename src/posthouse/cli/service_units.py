"""Services of this machine: systemd units and launchd agents for the daemon and the relay, and the daemon's commands.

Both kinds restart the server whenever it ends, except with exit code 4: a retry does not help while an identity is in
use elsewhere. launchd cannot exclude an exit code, so a shell turns 4 into success. The units remove privileges that
the servers never need. A server that notifies its manager gets a watchdog: systemd restarts it if it hangs.
"""

from __future__ import annotations

import os
import re
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
    """The properties of the service, for any service manager."""

    name: str
    description: str
    #: the program and its arguments, not quoted
    command: tuple[str, ...]
    #: directories the server writes to
    writes: tuple[Path, ...]
    #: environment variables of the server
    environment: Mapping[str, str]
    #: True: the server notifies systemd when it is ready and that it is alive, and reloads on SIGHUP
    notifies: bool = False


def program() -> tuple[str, ...]:
    """Return the command that starts this installation of posthouse, independent of PATH."""
    beside = Path(sys.executable).with_name("posthouse")
    if beside.is_file() and os.access(beside, os.X_OK):
        return (str(beside),)
    found = shutil.which("posthouse")
    return (found,) if found else (sys.executable, "-m", "posthouse.cli.main")


def service_file(name: str, environ: Mapping[str, str] = os.environ, platform: str | None = None) -> Path:
    """Return the path of a service's definition on this system; raises service_unsupported."""
    home, platform = Path(environ.get("HOME") or Path.home()), platform or sys.platform
    if platform == "darwin":
        return home / "Library" / "LaunchAgents" / f"{name}.plist"
    if platform.startswith("linux"):
        config = environ.get("XDG_CONFIG_HOME")
        return (Path(config) if config else home / ".config") / "systemd" / "user" / f"{name}.service"
    raise error("service_unsupported", platform=platform)


_UNIT = """\
[Unit]
Description={description}
After=network.target
StartLimitIntervalSec=0

[Service]
{type}ExecStart={command}
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


_EXEC = "Type=exec\n"
_NOTIFY = "Type=notify\nNotifyAccess=main\nWatchdogSec=30\nExecReload=/bin/kill -HUP $MAINPID\n"


def systemd_unit(service: ServiceDefinition) -> str:
    """Return the text of the unit."""
    variables = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in service.environment.items())
    return _UNIT.format(
        description=_plain(service.description),
        type=_NOTIFY if service.notifies else _EXEC,
        command=" ".join(_argument(each) for each in service.command),
        environment=variables,
        writes=" ".join(_quoted(str(each)) for each in service.writes),
    )


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return one word quoted for systemd, with its specifiers escaped."""
    escaped = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _argument(text: str) -> str:
    return _quoted(text).replace("$", "$$")


#: Passes SIGTERM on and waits for the server to end: when the shell has ended, launchd kills its remaining children.
_AGENT_SCRIPT = """\
trap 'kill -TERM "$server"; is_stopped=1' TERM
"$@" &
server=$!
wait "$server"
code=$?
[ -z "${is_stopped:-}" ] || { wait "$server"; code=$?; }
[ "$code" -eq %d ] && exit 0
exit "$code"
"""


def launchd_plist(service: ServiceDefinition) -> str:
    """Return the text of the property list."""
    import plistlib

    agent = {
        "Label": service.name,
        "ProgramArguments": ["/bin/sh", "-c", _AGENT_SCRIPT % Exit.IDENTITY, service.name, *service.command],
        "EnvironmentVariables": dict(service.environment),
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
    relay: Annotated[str | None, Parameter(help="Address of the relay. Default: as for `daemon up`.")] = None,
    show: Annotated[bool, Parameter(negative=(), show_default=False, help="Show the file and write nothing.")] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Write a systemd user unit, or on macOS a launchd agent, that runs the daemon and restarts it.

    It is not restarted after exit code 4: a retry does not help while the identity is in use elsewhere.

    For example:

        posthouse daemon install-service
        posthouse daemon install-service --mesh team --relay relay.example:7420
        posthouse daemon install-service --show --json
    """
    write_service(_define_service(daemon_options, relay), show=show, output=output)


def write_service(service: ServiceDefinition, *, show: bool, output: Output) -> None:
    """Write the file of a service, or only show it."""
    from posthouse.files import write_atomic

    path = service_file(service.name)
    text = launchd_plist(service) if path.suffix == ".plist" else systemd_unit(service)
    value = {"service": service.name, "path": path, "text": text, "written": not show}
    if show:
        output.result(value, text.rstrip("\n"))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode(), mode=0o644)
    output.result(value, f"wrote {path}")
    output.note(f"start the service now and at every login: {_start_command(path, service.name)}")


def _define_service(daemon_options: DaemonOptions, relay: str | None) -> ServiceDefinition:
    from posthouse.files import HOME_ENV, home_directory, private_dir

    mesh, directory = daemon_options.chosen_mesh(), daemon_options.root()
    words = ["daemon", "up", "--foreground", "--persistent", "--mesh", mesh, "--dir", str(directory)]
    if relay is not None:
        words += ["--relay", relay]
    home = home_directory()
    environment = {HOME_ENV: str(home)} if HOME_ENV in os.environ else {}
    writes = (home,) if directory.is_relative_to(home) else (home, directory)
    for each in writes:  # the unit's sandbox needs them to exist
        private_dir(each)
    command = (*program(), *words)
    return ServiceDefinition(_service_name(mesh), f"posthouse daemon of mesh {mesh}", command, writes, environment)


def _service_name(mesh: str) -> str:
    return f"posthouse-daemon-{re.sub(r'[^A-Za-z0-9_-]', '_', mesh)}"


def _start_command(path: Path, name: str) -> str:
    if sys.platform == "darwin":
        return f"launchctl bootstrap gui/{os.getuid()} {path}"
    return f"systemctl --user daemon-reload && systemctl --user enable --now {name}"


def uninstall_service(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Remove the file that `install-service` wrote; a running daemon keeps running.

    For example:

        posthouse daemon uninstall-service
        posthouse daemon uninstall-service --mesh team --json
    """
    mesh = daemon_options.chosen_mesh()
    remove_service(_service_name(mesh), "daemon", output)


def remove_service(name: str, server: str, output: Output) -> None:
    """Remove the file of a service."""
    path = service_file(name)
    existed = path.exists()
    path.unlink(missing_ok=True)
    output.result(
        {"service": name, "path": path, "removed": existed}, f"removed {path}" if existed else f"there is no {path}"
    )
    if existed:
        stop = f"launchctl bootout gui/$(id -u)/{name}" if sys.platform == "darwin" else f"systemctl --user stop {name}"
        output.note(f"stop the running {server} with: {stop}")
