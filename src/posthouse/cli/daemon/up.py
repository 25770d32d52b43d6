"""`posthouse daemon up`: run the daemon of this host, in the background unless told otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.flags import flags_of, setting_tokens
from posthouse.cli.near import USUAL, Near
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.cli.daemon.terms import Wish
    from posthouse.cli.flags import Flags as DaemonFlags
    from posthouse.daemon.daemon import Daemon
else:
    DaemonFlags = flags_of("outbox", "inbox", "clone", "daemon")

_SWITCH = Parameter(negative=(), show_default=False)


def up(
    *,
    relay: Annotated[
        str | None, Parameter(help="Address of the relay; without it the last one, or where the mesh was joined.")
    ] = None,
    foreground: Annotated[bool, _SWITCH, Parameter(help="Stay in the foreground until Ctrl-C or SIGTERM.")] = False,
    ephemeral: Annotated[bool, _SWITCH, Parameter(help="Use a key that ends with the daemon; the default in CI.")] = (
        False
    ),
    ttl: Annotated[str | None, Parameter(help="End an ephemeral daemon after so long, such as 2h.")] = None,
    persistent: Annotated[bool, _SWITCH, Parameter(help="Keep the key in the directory; the default elsewhere.")] = (
        False
    ),
    no_tcp: Annotated[bool, _SWITCH, Parameter(help="Listen on the Unix socket alone.")] = False,
    near: Near = USUAL,
    flags: DaemonFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Start the daemon; done when its socket answers. It goes on in the background and reconnects by itself.

    For example:

        posthouse daemon up
        posthouse daemon up --mesh team --relay relay.example:7420
        posthouse daemon up --ephemeral --ttl 2h --foreground --json
    """
    from posthouse.cli.daemon.duration import parse_duration
    from posthouse.cli.daemon.terms import Wish

    if ephemeral and persistent:
        raise error("usage", text="give either --ephemeral or --persistent")
    if ttl is not None and not ephemeral:
        raise error("usage", text="--ttl needs --ephemeral")
    given = {} if flags is None else flags.given()
    wish = Wish(
        near=near,
        relay=relay,
        is_ephemeral=True if ephemeral else False if persistent else None,
        ttl_s=None if ttl is None else parse_duration(ttl),
        tcp="off" if no_tcp else "auto",
    )
    if foreground:
        _run(wish, given, output)
        return
    from posthouse.cli.daemon.detach import start_detached

    told = start_detached([*wish.tokens(), *setting_tokens(given)])
    output.answer(told, _sentence(told))


def _run(wish: Wish, flags: dict[str, Any], output: Output) -> None:
    from posthouse.cli.daemon.process import run_daemon
    from posthouse.cli.daemon.terms import daemon_settings, note_relay

    settings, values = daemon_settings(wish, flags)
    if wish.relay is not None:
        note_relay(settings)
    run_daemon(settings, values, lambda daemon: _say(daemon, output))


def _say(daemon: Daemon, output: Output) -> None:
    told = _value(daemon)
    output.answer(told, _sentence(told))


def _value(daemon: Daemon) -> dict[str, Any]:
    import os

    return {
        "node": daemon.key.node,
        "mesh": daemon.settings.mesh,
        "relay": daemon.settings.relay,
        "directory": str(daemon.directory.root),
        "socket": str(daemon.directory.socket),
        "port": daemon.port,
        "pid": os.getpid(),
        "is_ephemeral": daemon.settings.is_ephemeral,
    }


def _sentence(told: dict[str, Any]) -> str:
    return f"posthouse daemon {told['node']} of mesh {told['mesh']} answers at {told['socket']} (pid {told['pid']})"
