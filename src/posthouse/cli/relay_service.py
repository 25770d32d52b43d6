"""`posthouse relay down`, `status`, `install-service` and `uninstall-service`: a relay that runs in the background.

A running relay holds the lock of its directory and describes itself in run.json there: process, address, version. The
lock decides whether a relay runs; without the lock, run.json was left by a killed process and is ignored.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.config import flags_of, load_settings, setting_tokens
from posthouse.cli.output import PLAIN, Output
from posthouse.cli.service_units import ServiceDefinition, program, remove_service, write_service
from posthouse.model.codes.spec import Exit

if TYPE_CHECKING:
    from posthouse.cli.config import Flags as RelayFlags
    from posthouse.relay.server import RelayServer
    from posthouse.sqlite.store_lock import StoreLock
else:
    RelayFlags = flags_of("relay")

RUN_NAME = "run.json"
LOG_NAME = "relay.log"
_SERVICE = "posthouse-relay"
_HEALTH_TIMEOUT_S = 5
_PATHS = {
    "relay.data_dir",
    "relay.high_water",
    "relay.log_file",
    "relay.metrics_token_file",
    "relay.tls_cert",
    "relay.tls_key",
}

#: The option of every command about a relay's directory.
DataDir = Annotated[
    Path | None,
    Parameter(
        name="--data-dir", help="Directory of the relay. Default: POSTHOUSE_RELAY_DATA_DIR, else ~/.posthouse/relay."
    ),
]


def relay_directory(given: Path | None) -> Path:
    """Return the directory of the relay."""
    values = load_settings({"relay.data_dir": None if given is None else str(given)})
    return values.path("relay.data_dir").absolute()


def describe_run(server: RelayServer) -> dict[str, Any]:
    """Return the description of a running relay, which `relay up` prints and run.json holds."""
    from posthouse.version import __version__

    scheme = "https" if server.settings.protection.has_tls else "http"
    return {
        "listen": str(server.address),
        "url": f"{scheme}://{server.address}",
        "relay": server.key.node,
        "data_dir": str(server.settings.data_dir),
        "pid": os.getpid(),
        "version": __version__,
    }


def write_run(directory: Path, run: dict[str, Any]) -> None:
    """Record a relay that has started; its process holds the lock."""
    import json

    from posthouse.files import write_atomic

    write_atomic(directory / RUN_NAME, json.dumps(run).encode(), mode=0o600)


def read_run(directory: Path) -> dict[str, Any] | None:
    """Return the record of the relay that runs in a directory, empty while it starts or stops; None if none runs."""
    import json

    if not _is_locked(directory):
        return None
    try:
        run: dict[str, Any] = json.loads((directory / RUN_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the relay is starting or stopping
        return {}
    return run


def forget_run(directory: Path) -> None:
    """Remove the record of a former relay before another starts: by now another program may have its process id."""
    lock = _take_lock(directory)
    if lock is not None:
        (directory / RUN_NAME).unlink(missing_ok=True)
        lock.close()


def _is_locked(directory: Path) -> bool:
    if not directory.exists():
        return False
    lock = _take_lock(directory)
    if lock is not None:
        lock.close()
    return lock is None


def _take_lock(directory: Path) -> StoreLock | None:
    """Take the lock of a relay's directory, or return None if a relay has it."""
    from posthouse.model.errors import PosthouseError
    from posthouse.sqlite.store_lock import StoreLock

    try:
        return StoreLock(directory / "relay", exclusive=True)
    except PosthouseError as failure:
        if failure.code != "store_in_use":
            raise
        return None


def down(*, data_dir: DataDir = None, output: Output = PLAIN) -> None:
    """Stop the relay of a directory and wait until it has ended; it commits and answers what it has accepted.

    For example:

        posthouse relay down
        posthouse relay down --data-dir /var/lib/posthouse/relay --json
    """
    pid = stop_relay(data_dir)
    text = "no relay is running" if pid is None else f"stopped the relay (pid {pid})"
    output.result({"stopped": pid is not None, "pid": pid}, text)


def stop_relay(data_dir: Path | None) -> int | None:
    """Stop the relay of a directory and wait for its end; return its process id, None if none runs."""
    from posthouse.cli.detach import stop_process
    from posthouse.model.errors import error

    run = read_run(relay_directory(data_dir))
    if run is None:
        return None
    if "pid" not in run:
        raise error("relay_run_unknown", path=str(relay_directory(data_dir) / RUN_NAME))
    stop_process(run["pid"], slow="relay_stop_slow")
    return int(run["pid"])


def status(*, data_dir: DataDir = None, output: Output = PLAIN) -> int:
    """Show whether a relay runs in this directory and accepts events; exit code 3 if it does not.

    For example:

        posthouse relay status
        posthouse relay status --data-dir /var/lib/posthouse/relay --json
    """
    directory = relay_directory(data_dir)
    run = read_run(directory)
    health = ask_health(run["url"]) if run else "not running" if run is None else "starting or stopping"
    value = {"running": run is not None, "health": health, "data_dir": str(directory), **(run or {})}
    output.result(value, "\n".join(f"{name:<9}{shown}" for name, shown in value.items()))
    return Exit.OK if health == "ok" else Exit.UNREACHABLE


def ask_health(url: str) -> str:
    """Return "ok", or why the relay does not accept events."""
    import http.client
    import json
    import ssl
    from urllib.parse import urlsplit

    place = urlsplit(url)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place.hostname or "", place.hostname or "")
    connection: http.client.HTTPConnection
    if place.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # local: the process that holds the lock
        connection = http.client.HTTPSConnection(host, place.port, timeout=_HEALTH_TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, place.port, timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        answer = connection.getresponse()
        body = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as failure:
        return f"no answer: {failure}"
    finally:
        connection.close()
    return "ok" if answer.status == 200 else str(body.get("detail") or body.get("status") or answer.status)


def install_service(
    *,
    show: Annotated[bool, Parameter(negative=(), show_default=False, help="Show the file and write nothing.")] = False,
    flags: RelayFlags | None = None,
    output: Output = PLAIN,
) -> None:
    r"""Write a systemd user unit, or on macOS a launchd agent, that runs the relay and restarts it.

    The unit waits until the relay is ready, restarts it if it hangs, and reloads settings and certificates with
    `systemctl --user reload posthouse-relay`. Options given here become options of `relay up`; the settings file and
    the certificate are read at every start.

    For example:

        posthouse relay install-service
        posthouse relay install-service --listen 0.0.0.0:7420 --admin ed25519:... \
            --tls-cert cert.pem --tls-key key.pem
        posthouse relay install-service --show --json
    """
    write_service(_define_service({} if flags is None else flags.given()), show=show, output=output)


def uninstall_service(*, output: Output = PLAIN) -> None:
    """Remove the file that `install-service` wrote; a running relay keeps running.

    For example:

        posthouse relay uninstall-service
        posthouse relay uninstall-service --json
    """
    remove_service(_SERVICE, "relay", output)


def _define_service(given: dict[str, Any]) -> ServiceDefinition:
    from posthouse.files import HOME_ENV, home_directory, private_dir
    from posthouse.relay.process import server_settings

    given = {name: value for name, value in given.items() if value is not None}
    for name in _PATHS & given.keys():  # the service starts in another directory
        given[name] = str(Path(given[name]).expanduser().absolute())
    directory = server_settings(load_settings(given)).data_dir  # also checks the other settings
    home = home_directory()
    environment = {HOME_ENV: str(home)} if HOME_ENV in os.environ else {}
    writes = (home,) if directory.is_relative_to(home) else (home, directory)
    for each in writes:  # the unit's sandbox needs them to exist
        private_dir(each)
    command = (*program(), "relay", "up", *setting_tokens(given))
    return ServiceDefinition(_SERVICE, "posthouse relay", command, writes, environment, notifies=True)
