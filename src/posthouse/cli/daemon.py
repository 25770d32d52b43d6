"""`posthouse daemon`: start and stop the daemon of this host, show its state and log, repair its identity or outbox.

`down` finds the process through the credentials of the socket, because a pid file may be stale.
`accept-host`, `remint` and `recover` work on the directory of a daemon that does not run.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.config import flags_of
from posthouse.cli.daemon_home import adopt, backup, leave, ps, restore, rotate_token
from posthouse.cli.daemon_outbox import app as outbox
from posthouse.cli.daemon_start import StartOptions, daemon_pid, ensure_daemon, existing_mesh
from posthouse.cli.lean_imports import import_for_server
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.service_units import install_service, uninstall_service
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.cli.config import Flags as DaemonFlags
    from posthouse.client.daemon.local_api import MeshState
    from posthouse.daemon.daemon import Daemon
else:
    DaemonFlags = flags_of("outbox", "inbox", "clone", "daemon", "mcp")


_SWITCH = Parameter(negative=(), show_default=False)


def up(
    *,
    relay: Annotated[
        str | None, Parameter(help="Address of the relay. Default: the one used last, else where the mesh was joined.")
    ] = None,
    foreground: Annotated[bool, _SWITCH, Parameter(help="Stay in the foreground until Ctrl-C or SIGTERM.")] = False,
    ephemeral: Annotated[
        bool, _SWITCH, Parameter(help="Use a key that is discarded when the daemon ends; the default in CI.")
    ] = (False),
    ttl: Annotated[str | None, Parameter(help="Stop an ephemeral daemon after this time, such as 2h.")] = None,
    persistent: Annotated[bool, _SWITCH, Parameter(help="Keep the key in the directory; the default outside CI.")] = (
        False
    ),
    no_tcp: Annotated[bool, _SWITCH, Parameter(help="Listen on the Unix socket only.")] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    flags: DaemonFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Start the daemon in the background; returns when its socket answers.

    For example:

        posthouse daemon up
        posthouse daemon up --mesh team --relay relay.example:7420
        posthouse daemon up --ephemeral --ttl 2h --foreground --json
    """
    from posthouse.cli.options import parse_duration

    if ephemeral and persistent:
        raise error("usage", text="give either --ephemeral or --persistent")
    if ttl is not None and not ephemeral:
        raise error("usage", text="--ttl needs --ephemeral")
    given = {} if flags is None else flags.given()
    options = StartOptions(
        daemon_options=daemon_options,
        relay=relay,
        is_ephemeral=True if ephemeral else False if persistent else None,
        ttl_s=None if ttl is None else parse_duration(ttl),
        tcp="off" if no_tcp else "auto",
    )
    if foreground:
        _run(options, given, output)
        return
    started = ensure_daemon(options, given)
    output.result(started, _ready_line(started))


def _run(options: StartOptions, flags: dict[str, Any], output: Output) -> None:
    from posthouse.cli.daemon_start import daemon_settings, record_relay, run_daemon

    import_for_server()
    settings, values = daemon_settings(options, flags)
    if options.relay is not None and not settings.is_ephemeral:
        first = settings.meshes[0]
        record_relay(settings.directory / first.mesh, first.relay)
    run_daemon(settings, values, lambda daemon: _announce(daemon, output))


def _announce(daemon: Daemon, output: Output) -> None:
    started = _started_value(daemon)
    output.result(started, _ready_line(started))


def _started_value(daemon: Daemon) -> dict[str, Any]:
    first = next(iter(daemon.meshes))
    return {
        "node": first.key.node,
        "mesh": first.mesh,
        "relay": first.settings.relay,
        "directory": str(daemon.directory.root),
        "socket": str(daemon.directory.socket),
        "port": daemon.port,
        "pid": os.getpid(),
        "is_ephemeral": daemon.settings.is_ephemeral,
    }


def _ready_line(started: dict[str, Any]) -> str:
    return f"daemon {started['node']} of mesh {started['mesh']} listens on {started['socket']} (pid {started['pid']})"


def down(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Stop the daemon and wait until it has ended; accepted messages stay on disk and are sent after the next start.

    For example:

        posthouse daemon down
        posthouse daemon down --mesh team --json
    """
    from posthouse.cli.detach import stop_process

    pid = daemon_pid(daemon_options)
    if pid is None:
        output.result({"stopped": False, "pid": None}, "no daemon is running")
        return
    stop_process(pid, slow="daemon_stop_slow")
    output.result({"stopped": True, "pid": pid}, f"stopped the daemon (pid {pid})")


def status(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Show whether the daemon runs and reaches its relay, and how many messages wait; exit code 3 if it does not run.

    For example:

        posthouse daemon status
        posthouse daemon status --mesh team --json
    """
    import msgspec

    with daemon_options.client() as daemon:
        health = daemon.health()
        directory = daemon.place.directory
    values: dict[str, Any] = {**msgspec.to_builtins(health), "directory": str(directory)}
    fields = values | ({} if health.clock_doubt is None else {"clock_trusted": f"no: {health.clock_doubt}"})
    left_out = ("meshes", "clock_doubt")
    shown = [f"{name:<20}{value}" for name, value in fields.items() if value is not None and name not in left_out]
    output.result(values, "\n".join([*shown, *(_mesh_line(mesh) for mesh in health.meshes)]))
    if health.clock_warning is not None:
        output.note(health.clock_warning)


def _mesh_line(mesh: MeshState) -> str:
    state = mesh.state if mesh.admitted or mesh.state != "connected" else "connected, not admitted"
    reason = "" if mesh.reason is None else f": {mesh.reason}. {mesh.hint or ''}".rstrip()
    return f"{'mesh':<20}{mesh.mesh} at {mesh.relay} is {state}{reason}"


def version(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Show the version of the running daemon, of its local API and of its stores.

    For example:

        posthouse daemon version
        posthouse daemon version --json
    """
    import msgspec

    with daemon_options.client() as daemon:
        found = daemon.version()
    values = msgspec.structs.asdict(found)
    output.result(found, "\n".join(f"{name:<14}{value}" for name, value in values.items() if value is not None))


LOG_NAME = "daemon.log"
_LEADING = ("timestamp", "level", "event")


def logs(
    *,
    lines: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000), help="Number of lines to show.")] = 50,
    level: Annotated[str | None, Parameter(help="Only this level, such as warning or error.")] = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Show the end of the daemon's log; works without a running daemon.

    For example:

        posthouse daemon logs
        posthouse daemon logs --lines 200 --level error --json
    """
    path = daemon_options.location().directory / LOG_NAME
    if not path.exists():
        raise error("usage", text=f"there is no {path}", hint="Give the daemon's directory with --dir.")
    chosen = (entry for entry in _entries(path) if level is None or entry.get("level") == level)
    for entry in deque(chosen, maxlen=lines):
        output.result(entry, _line(entry))


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of the log; a line that a crash cut off becomes the event text."""
    import msgspec

    with path.open("rb") as file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except ValueError:
                yield {"event": line.decode(errors="replace").rstrip("\n")}


def _line(entry: dict[str, Any]) -> str:
    leading = [str(entry[name]) for name in _LEADING if name in entry]
    rest = [f"{name}={value}" for name, value in entry.items() if name not in _LEADING]
    return "  ".join(leading + rest)


def accept_host(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Accept this machine as the new host of the daemon's identity, after its directory was moved.

    If the directory was copied and the original is still in use, run `remint` here instead: two machines with one
    identity take each other's messages.

    For example:

        posthouse daemon accept-host
        posthouse daemon accept-host --mesh team --json
    """
    from posthouse.daemon.identity import accept_this_host

    directory = existing_mesh(daemon_options)
    accept_this_host(directory)
    output.result({"directory": directory.root, "accepted": True}, f"{directory.root} now belongs to this machine")


def remint(
    *,
    abort_pending: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Abort messages that have not been sent yet.")
    ] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Create a new key for a stopped daemon; other members see a new node, which has to join again.

    Refused while messages signed with the current key wait. The old key stays in the directory under another name.

    For example:

        posthouse daemon remint
        posthouse daemon remint --abort-pending --json
    """
    from posthouse.daemon.identity import remint as remint_identity
    from posthouse.model.clock import system_clock

    directory = existing_mesh(daemon_options)
    before, after = remint_identity(directory, system_clock(), abort_pending=abort_pending)
    output.result({"before": before or None, "node": after}, f"the daemon is now {after}")


def rotate_key(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Replace the key of this host in a mesh; its name, mail and agents keep their addresses.

    The old key signs the new one as its successor; from then on the relay refuses the old key. The old key stays in the
    directory, to open mail that was sealed for it. If the command is interrupted, run it again.

    For example:

        posthouse daemon rotate-key
        posthouse daemon rotate-key --mesh team --json
    """
    mesh = daemon_options.chosen_mesh()
    with daemon_options.client() as daemon:
        rotated = daemon.rotate_key(mesh)
    output.result(rotated, f"this host is now {rotated['node']} in {mesh}; it was {rotated['before']}")


def recover(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Replace the damaged outbox of a stopped daemon with a new one that has all readable rows.

    The damaged file is kept beside the new one. Messages that the relay already has are not duplicated.

    For example:

        posthouse daemon recover
        posthouse daemon recover --dir ./daemon --json
    """
    from posthouse.daemon.recovery import recover_outbox
    from posthouse.model.clock import system_clock

    found = recover_outbox(existing_mesh(daemon_options), system_clock())
    if found.aside is None:
        output.result(found._asdict(), "there is no outbox to recover")
        return
    output.result(
        found._asdict(),
        f"{found.rows} rows recovered, {found.pending} of them to be sent; the old file is {found.aside}",
    )


def hooks(
    *,
    retry: Annotated[str | None, Parameter(help="Try the parked events of this hook again now.")] = None,
    drop: Annotated[str | None, Parameter(help="Discard the parked events of this hook.")] = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """List the hooks of the settings file and their parked events, whose commands keep failing.

    For example:

        posthouse daemon hooks
        posthouse daemon hooks --retry archive
        posthouse daemon hooks --drop archive --json
    """
    if retry is not None and drop is not None:
        raise error("usage", text="give either --retry or --drop")
    with daemon_options.client() as daemon:
        if retry is not None or drop is not None:
            changed = daemon.change_parked(retry or drop or "", "drop" if retry is None else "retry")
            verb = "discarded" if retry is None else "retried"
            output.result(changed, f"{changed['count']} events of {changed['hook']} are {verb}")
            return
        found = daemon.event_hooks()
    rows = [
        (each["hook"], each["event"], each["ref"], each["attempts"], each["last_exit"], each["next_at"])
        for each in found["parked"]
    ]
    listed = table(
        ("hook", "event", "parked"), [(each["name"], each["event"], each["parked"]) for each in found["items"]]
    )
    output.result(found, listed if not rows else table(("hook", "event", "about", "attempts", "exit", "next"), rows))


app = noun("daemon", "Run the daemon of this host: outbox, inbox and a local API for programs.")
app.command(up, name="up")
app.command(down, name="down")
app.command(status, name="status")
app.command(ps, name="ps")
app.command(adopt, name="adopt")
app.command(leave, name="leave")
app.command(rotate_token, name="rotate-token")
app.command(backup, name="backup")
app.command(restore, name="restore")
app.command(version, name="version")
app.command(logs, name="logs")
app.command(accept_host, name="accept-host")
app.command(remint, name="remint")
app.command(rotate_key, name="rotate-key")
app.command(recover, name="recover")
app.command(install_service, name="install-service")
app.command(uninstall_service, name="uninstall-service")
app.command(hooks, name="hooks")
app.command(outbox, name="outbox")
