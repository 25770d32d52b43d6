"""`posthouse relay`: run a relay, and back up, verify, restore, check, export, import and move its store.

Running is here; the commands about the store are in relay_store, those about the service in relay_service.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.commands import noun
from posthouse.cli.config import Settings, load_settings, setting_tokens
from posthouse.cli.lean_imports import import_for_server
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, DEFAULT_RELAY, MeshOptions, RelayOptions, key_path
from posthouse.cli.output import PLAIN, Output
from posthouse.cli.relay_follow import follow, promote
from posthouse.cli.relay_mirror import mirror
from posthouse.cli.relay_service import (
    LOG_NAME,
    describe_run,
    down,
    forget_run,
    install_service,
    read_run,
    status,
    uninstall_service,
    write_run,
)
from posthouse.cli.relay_space import compact, delete, size
from posthouse.cli.relay_store import backup, check, export, import_, migrate, reindex, restore, verify
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.cli.config import Flags as RelayFlags
    from posthouse.client import RelayUrl
    from posthouse.model.settings_sources import Resolved
    from posthouse.relay.server import RelayServer, ServerSettings
else:
    from posthouse.cli.relay_service import RelayFlags


def up(
    *,
    detach: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Run in the background; return when it is ready.")
    ] = False,
    new: Annotated[
        bool, Parameter(negative="", help="Start with an empty store even though the relay's earlier store is lost.")
    ] = False,
    flags: RelayFlags | None = None,
    output: Output = PLAIN,
) -> None:
    r"""Run a relay until Ctrl-C or SIGTERM; it prints its address when it is ready.

    To listen on addresses other than loopback it needs TLS, or a proxy that terminates TLS, and an administrator. In
    the background it logs to relay.log in its directory; `relay down` stops it. SIGHUP makes it read settings and
    certificate again; on a terminal, SIGHUP ends the relay, because it means that the terminal was closed. `--new`
    is refused if there is a store, so that it does no harm in a unit file.

    For example:

        posthouse relay up
        posthouse relay up --detach
        posthouse relay up --listen 127.0.0.1:0 --data-dir ./relay --json
        posthouse relay up --listen 0.0.0.0:7420 --admin ed25519:... \
            --tls-cert cert.pem --tls-key key.pem
    """
    import_for_server()
    from posthouse.relay.process import run_relay, server_settings

    given = {} if flags is None else flags.given()
    if detach:
        _detach(given, output, is_new=new)
        return

    configure_log = _open_log(load_settings(given))

    def load() -> tuple[Mapping[str, Resolved], ServerSettings]:
        values = load_settings(given)
        settings = server_settings(values, _own_node(), is_new=new)
        configure_log(values)
        return values, settings

    _, settings = load()
    if running := read_run(settings.data_dir):
        raise error("relay_running", url=running["url"], pid=running["pid"])
    if settings.data_dir.exists():
        forget_run(settings.data_dir)
    run_relay(settings, lambda server: _announce(server, output), None if sys.stderr.isatty() else load)


def _detach(given: dict[str, Any], output: Output, *, is_new: bool) -> None:
    from posthouse.cli.detach import start_detached
    from posthouse.files import private_dir

    values, is_elsewhere = load_settings(given), given.get("relay.data_dir") is not None
    directory = values.path("relay.data_dir").absolute()
    if running := read_run(directory):
        output.result(running, f"{_ready_line(running)} already")
        return
    if values["relay.log_file"].value is None:
        given |= {"relay.data_dir": str(directory), "relay.log_file": str(private_dir(directory) / LOG_NAME)}
    words = ("relay", "up", "--json", *(("--new",) if is_new else ()), *setting_tokens(given))
    started = start_detached("relay", words, slow="relay_start_slow")
    output.result(started, _ready_line(started))
    log_file = given.get("relay.log_file") or values.text("relay.log_file")
    where = f" --data-dir {shlex.quote(str(directory))}" if is_elsewhere else ""
    output.note(f"its log is {log_file}; stop it: posthouse relay down{where}")


def _open_log(values: Settings) -> Callable[[Settings], None]:
    """Return the function that configures the log, to stderr or to a file that is opened here."""
    from posthouse.cli.log import LogFile, log_to_file, log_to_stderr

    path = values.optional_path("relay.log_file")
    return log_to_stderr if path is None else partial(log_to_file, LogFile(path))


def _own_node() -> str | None:
    """Return the node id of this user, who administers the relay by default, or None without a key."""
    from posthouse.keys import keyfile
    from posthouse.model.node import DEFAULT_MESH

    path = key_path(None, DEFAULT_MESH)
    return keyfile.load(path).node if path.exists() else None


def _announce(server: RelayServer, output: Output) -> None:
    run = describe_run(server)
    write_run(server.settings.data_dir, run)
    output.result(run, _ready_line(run))


def _ready_line(run: dict[str, Any]) -> str:
    return f"relay {run['relay']} listens on {run['url']}"


_SHOWN = ("relay", "version", "epoch", "is_test_clock")


def info(
    relay: Annotated[
        str | None, Parameter(show_default=False, help="Address of the relay: HOST:PORT or a URL.")
    ] = None,
    /,
    *,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Show the properties and limits of a relay, and whether its key is the pinned one; this needs no key.

    For example:

        posthouse relay info
        posthouse relay info relay.example:7420 --json
    """
    from posthouse.client import Pins, parse_relay_url

    url = (
        relay_options.url()
        if relay is None
        else parse_relay_url(relay, allow_plain=relay_options.options().allow_plain)
    )
    found = asyncio.run(_fetch_info(url, relay_options))
    pinned = Pins.of_home().relay(url.origin)
    state = "not pinned" if pinned is None else "pinned" if pinned == found.get("relay") else f"CHANGED from {pinned}"
    lines = [f"url      {url.origin}", f"key      {state}"]
    lines += [f"{name:<8} {found.get(name)}" for name in _SHOWN if name in found]
    lines += [f"feature  {name}{_feature_text(value)}" for name, value in dict(found.get("features") or {}).items()]
    lines += [f"limit    {name} {value}" for name, value in dict(found.get("limits") or {}).items()]
    output.result(found | {"url": url.origin, "pinned": pinned}, "\n".join(lines))


def _feature_text(value: object) -> str:
    """Return the parameters of a feature, one word each; empty for a feature without parameters."""
    given = value if isinstance(value, dict) else {} if value is True else {"": value}
    return "".join(f" {name}={each}" if name else f" {each}" for name, each in given.items())


async def _fetch_info(url: RelayUrl, relay_options: RelayOptions) -> dict[str, Any]:
    from posthouse.client import Client, Pins
    from posthouse.keys import NodeKey

    # a throw-away key and no pins: the request does not reveal this node
    async with Client(url, NodeKey.generate(), pins=Pins(None), options=relay_options.options()) as client:
        return await client.info()


def token(*, mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS, output: Output = PLAIN) -> None:
    """Print a token of this node for curl and other HTTP clients of the relay. Keep it secret; it expires in an hour.

    For example:

        posthouse relay token
        posthouse relay token --relay relay.example:7420 --json
    """
    mesh = mesh_options.name
    found = mesh_options.run(mesh, lambda client: client.token())
    output.result({"token": found, "url": mesh_options.url(mesh).origin}, found)


app = noun("relay", "Run a relay and maintain its store.")
app.command(up, name="up")
app.command(down, name="down")
app.command(status, name="status")
app.command(info, name="info")
app.command(token, name="token")
app.command(backup, name="backup")
app.command(verify, name="verify")
app.command(restore, name="restore")
app.command(follow, name="follow")
app.command(promote, name="promote")
app.command(mirror, name="mirror")
app.command(reindex, name="reindex")
app.command(check, name="check")
app.command(delete, name="delete")
app.command(compact, name="compact")
app.command(size, name="size")
app.command(install_service, name="install-service")
app.command(uninstall_service, name="uninstall-service")
app.command(export, name="export")
app.command(import_, name="import")
app.command(migrate, name="migrate")
