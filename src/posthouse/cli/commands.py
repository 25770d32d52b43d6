"""The table of commands, and the two commands about the command line itself: `version` and `completion`.

If you add a command: 1. its module and attribute in COMMANDS, 2. its line in `overview.GROUPS`. A command module is
imported when its command runs. It imports the layer that it drives inside functions, so that its --help works without
any extra installed.
"""

from __future__ import annotations

import platform
from typing import Annotated, Literal

from cyclopts import App, Parameter

from posthouse.cli.output import PLAIN, Output
from posthouse.cli.overview import TAGLINE
from posthouse.version import __version__, version_line


def version(*, output: Output = PLAIN) -> None:
    """Show the version of posthouse and of the Python it runs on.

    For example:

        posthouse version
        posthouse version --json
    """
    value = {"posthouse": __version__, "python": platform.python_version()}
    output.result(value, version_line())


Shell = Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that runs the script.")]


def completion(shell: Shell, /, *, output: Output = PLAIN) -> None:
    r"""Print the completion script for a shell.

    For example:

        posthouse completion bash \
            > ~/.local/share/bash-completion/completions/posthouse
        posthouse completion zsh > ~/.zfunc/_posthouse
        posthouse completion fish > ~/.config/fish/completions/posthouse.fish
    """
    script = build().generate_completion(shell=shell)
    output.result({"shell": shell, "script": script}, script)


#: Name on the command line -> module and attribute of its function or app.
COMMANDS = {
    "up": "posthouse.cli.up:up",
    "connect": "posthouse.cli.connect:connect",
    "status": "posthouse.cli.status:status",
    "console": "posthouse.cli.console:console",
    "invite": "posthouse.cli.up:invite",
    "join": "posthouse.cli.join:join",
    "down": "posthouse.cli.status:down",
    "doctor": "posthouse.cli.doctor:doctor",
    "version": "posthouse.cli.commands:version",
    "send": "posthouse.cli.send:send",
    "request": "posthouse.cli.request:request",
    "inbox": "posthouse.cli.inbox:app",
    "tail": "posthouse.cli.inbox:tail",
    "history": "posthouse.cli.history:history",
    "trace": "posthouse.cli.trace:trace",
    "topic": "posthouse.cli.topic:app",
    "message": "posthouse.cli.message:app",
    "bus": "posthouse.cli.bus:app",
    "agent": "posthouse.cli.agent:app",
    "peers": "posthouse.cli.peers:peers",
    "profile": "posthouse.cli.peers:profile",
    "use": "posthouse.cli.join:use",
    "mesh": "posthouse.cli.mesh:app",
    "trust": "posthouse.cli.keys:trust",
    "lock": "posthouse.cli.lock:app",
    "reserve": "posthouse.cli.reserve:reserve",
    "release": "posthouse.cli.reserve:release",
    "guard": "posthouse.cli.guard:app",
    "relay": "posthouse.cli.relay:app",
    "daemon": "posthouse.cli.daemon:app",
    "check": "posthouse.cli.check:app",
    "top": "posthouse.cli.top:top",
    "queue": "posthouse.cli.queue:app",
    "webhook": "posthouse.cli.webhook:app",
    "keys": "posthouse.cli.keys:app",
    "config": "posthouse.cli.config:config",
    "bench": "posthouse.cli.bench:app",
    "completion": "posthouse.cli.commands:completion",
    "man": "posthouse.cli.man:man",
    "event": "posthouse.cli.event:app",
    "pipeline": "posthouse.cli.pipeline:app",
    "mcp": "posthouse.cli.mcp:mcp",
    "hook": "posthouse.cli.connect_hooks:hook",
}


def build() -> App:
    """Make the command line."""
    app = noun("posthouse", TAGLINE, version=version_line())
    for name, path in COMMANDS.items():
        app.command(path, name=name)
    return app


def noun(name: str, summary: str, version: str | None = None) -> App:
    """Make the app of one noun; its verbs are added with `app.command(function, name="verb")`."""
    return App(name=name, help=summary, version=version, version_flags=["--version"] if version else [])


def note_new_name(former: str, name: str, output: Output) -> None:
    """Print a note that a command has a new name; the former one is hidden and will be removed in 1.0."""
    output.note(f"`posthouse {former}` is now `posthouse {name}`; the former name will be removed in 1.0")
