"""The list of commands. One line adds one: its name, and where its function or its noun's app is.

Nothing is imported before it is used: `posthouse version` loads one small file. A command module imports the
layer it drives inside its function, so that `posthouse --help` works without any extra installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from cyclopts import App

from posthouse.version import __version__

#: Name on the command line -> module and attribute; what is not installed is left out.
COMMANDS = {
    "version": "posthouse.cli.version:version",
    "doctor": "posthouse.cli.doctor:doctor",
    "config": "posthouse.cli.config:config",
    "keys": "posthouse.cli.keys:app",
    "bus": "posthouse.cli.bus:app",
    "relay": "posthouse.cli.relay:app",
    "event": "posthouse.cli.event:app",
    "mesh": "posthouse.cli.mesh:app",
    "join": "posthouse.cli.join:join",
    "trust": "posthouse.cli.trust:trust",
    "message": "posthouse.cli.message:app",
    "queue": "posthouse.cli.queue:app",
    "daemon": "posthouse.cli.daemon:app",
    "send": "posthouse.cli.send:send",
    "inbox": "posthouse.cli.inbox:app",
    "peers": "posthouse.cli.peers:peers",
    "topic": "posthouse.cli.topic:app",
    "profile": "posthouse.cli.profile:profile",
    "tail": "posthouse.cli.tail:tail",
    "history": "posthouse.cli.history:history",
    "trace": "posthouse.cli.trace:trace",
    "lock": "posthouse.cli.lock:app",
    "mcp": "posthouse.cli.mcp:mcp",
    "connect": "posthouse.cli.connect:connect",
    "pipeline": "posthouse.cli.pipeline:app",
    "bench": "posthouse.cli.bench:app",
    "completion": "posthouse.cli.completion:completion",
}

_HELP = "The relay for teams of AI agents: durable messages, budgets, locks, and a history that can be proved."


def build(*, eager: bool = False) -> App:
    """Make the command line with every command that is installed; `eager` loads them all, for help."""
    app = noun("posthouse", _HELP, version=__version__)
    for name, path in COMMANDS.items():
        if _is_installed(path.partition(":")[0]):
            app.command(_load(path) if eager else path, name=name)
    return app


def noun(name: str, summary: str, version: str | None = None) -> App:
    """Make the app of one noun; its verbs are added with `app.command(function, name="verb")`."""
    return App(name=name, help=summary, version=version, version_flags=["--version"] if version else [])


def _is_installed(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a folder without a module is no command


def _load(path: str) -> App | Callable[..., object]:
    module, _, attribute = path.partition(":")
    loaded: App | Callable[..., object] = getattr(import_module(module), attribute)
    return loaded
