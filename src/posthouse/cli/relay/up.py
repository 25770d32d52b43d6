"""`posthouse relay up`: run a relay in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.flags import flags_of
from posthouse.cli.home import find_home
from posthouse.cli.settings import load

if TYPE_CHECKING:
    from posthouse.cli.flags import Flags as RelayFlags
    from posthouse.relay.server import RelayServer
else:
    RelayFlags = flags_of("relay")


def up(*, flags: RelayFlags | None = None, output: Output = PLAIN) -> None:
    """Run a relay until it is ended by Ctrl-C or SIGTERM; it is ready when it says where it listens.

    Beyond loopback it needs TLS, or a proxy that ends TLS, and an administrator.

    For example:

        posthouse relay up
        posthouse relay up --listen 127.0.0.1:0 --data-dir ./relay --json
        posthouse relay up --listen 0.0.0.0:7420 --tls-cert cert.pem --tls-key key.pem --admin ed25519:...
    """
    from posthouse.cli.log import configure_log
    from posthouse.relay.configure import server_settings
    from posthouse.relay.process import run_relay

    values = load(flags.given() if flags is not None else None)
    configure_log(values)
    settings = server_settings(values, _own_node())
    run_relay(settings, lambda server: _say(server, output))


def _own_node() -> str | None:
    """Return the node of this user, if it has a key: who starts a relay administers it."""
    from posthouse.keys import keyfile

    path = find_home().key
    return keyfile.load(path).node if path.exists() else None


def _say(server: RelayServer, output: Output) -> None:
    scheme = "https" if server.settings.protection.has_tls else "http"
    url = f"{scheme}://{server.place}"
    value = {"listen": str(server.place), "url": url, "relay": server.key.node, "data_dir": server.settings.data_dir}
    output.answer(value, f"posthouse relay {server.key.node} listens on {url}")
