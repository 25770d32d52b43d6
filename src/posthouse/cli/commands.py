"""The list of commands, and the two commands about the command line itself: `version` and `completion`.

One line in COMMANDS adds a command: its name, and the module and attribute of its function or app. A command module
is imported when its command runs; `posthouse version` loads only this module and `output`. Command modules import the
layer they drive inside functions, so that `posthouse --help` works without any extra installed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Literal

from cyclopts import App, Parameter

from posthouse.cli.output import PLAIN, Output
from posthouse.version import __version__


def version(*, output: Output = PLAIN) -> None:
    """Show the version of posthouse and of the Python it runs on.

    For example:

        posthouse version
        posthouse version --json
    """
    value = {"posthouse": __version__, "python": platform.python_version()}
    output.result(value, f"posthouse {__version__} (Python {value['python']})")


Shell = Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that runs the script.")]


def completion(shell: Shell, /, *, output: Output = PLAIN) -> None:
    """Print the completion script for a shell.

    For example:

        posthouse completion bash > ~/.local/share/bash-completion/completions/posthouse
        posthouse completion zsh > ~/.zfunc/_posthouse
        posthouse completion fish > ~/.config/fish/completions/posthouse.fish
    """
    script = build(eager=True).generate_completion(shell=shell)
    output.result({"shell": shell, "script": script}, script)


#: Name on the command line -> module and attribute.
COMMANDS = {
    "version": "posthouse.cli.commands:version",
    "doctor": "posthouse.cli.doctor:doctor",
    "config": "posthouse.cli.config:config",
    "keys": "posthouse.cli.keys:app",
    "bus": "posthouse.cli.bus:app",
    "relay": "posthouse.cli.relay:app",
    "event": "posthouse.cli.event:app",
    "mesh": "posthouse.cli.mesh:app",
    "up": "posthouse.cli.up:up",
    "down": "posthouse.cli.status:down",
    "status": "posthouse.cli.status:status",
    "invite": "posthouse.cli.up:invite",
    "join": "posthouse.cli.join:join",
    "use": "posthouse.cli.join:use",
    "trust": "posthouse.cli.keys:trust",
    "message": "posthouse.cli.message:app",
    "queue": "posthouse.cli.queue:app",
    "daemon": "posthouse.cli.daemon:app",
    "send": "posthouse.cli.send:send",
    "inbox": "posthouse.cli.inbox:app",
    "agent": "posthouse.cli.agent:app",
    "peers": "posthouse.cli.peers:peers",
    "topic": "posthouse.cli.topic:app",
    "profile": "posthouse.cli.peers:profile",
    "tail": "posthouse.cli.inbox:tail",
    "history": "posthouse.cli.history:history",
    "trace": "posthouse.cli.trace:trace",
    "lock": "posthouse.cli.lock:app",
    "reserve": "posthouse.cli.reserve:reserve",
    "release": "posthouse.cli.reserve:release",
    "guard": "posthouse.cli.guard:app",
    "mcp": "posthouse.cli.mcp:mcp",
    "hook": "posthouse.cli.connect_hooks:hook",
    "connect": "posthouse.cli.connect:connect",
    "console": "posthouse.cli.console:console",
    "pipeline": "posthouse.cli.pipeline:app",
    "bench": "posthouse.cli.bench:app",
    "completion": "posthouse.cli.commands:completion",
}
_HELP = "The relay for teams of AI agents: durable messages, budgets, locks, and a history that can be proved."


def build(*, eager: bool = False) -> App:
    """Make the command line; `eager` loads every command module, which help and completion need."""
    app = noun("posthouse", _HELP, version=__version__)
    for name, path in COMMANDS.items():
        app.command(_load(path) if eager else path, name=name)
    return app


def noun(name: str, summary: str, version: str | None = None) -> App:
    """Make the app of one noun; its verbs are added with `app.command(function, name="verb")`."""
    return App(name=name, help=summary, version=version, version_flags=["--version"] if version else [])


def _load(path: str) -> App | Callable[..., object]:
    module, _, attribute = path.partition(":")
    loaded: App | Callable[..., object] = getattr(import_module(module), attribute)
    return loaded
