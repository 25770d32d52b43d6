"""`posthouse mcp`: the options and help of the pipe, the address of MCP over HTTP, and the pipe's command line.

The pipe itself is in `posthouse.mcp.pipe`, which loads none of this. `posthouse connect` writes the command line that
`server_entry` returns: it names this installation of posthouse by its path and the chosen daemon.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.files import HOME_ENV, home_directory


@dataclass(frozen=True)
class ServerEntry:
    """A command line with its environment."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        return (self.command, *self.args)


def server_entry(
    daemon_options: DaemonOptions, agent: str | None = None, environ: Mapping[str, str] = os.environ
) -> ServerEntry:
    """Return the command line that starts `posthouse mcp` for a daemon and the agent with this name."""
    from posthouse.cli.service_units import program

    options = [] if agent is None else ["--as", agent]
    options += [] if daemon_options.mesh is None else ["--mesh", daemon_options.mesh]
    if daemon_options.directory is not None:
        options += ["--dir", str(daemon_options.root())]
    command, *rest = program()
    env = {HOME_ENV: str(home_directory(environ))} if environ.get(HOME_ENV) else {}
    return ServerEntry(command, (*rest, "mcp", *options), env)


def mcp(
    *,
    as_: Annotated[
        str | None,
        Parameter(name="--as", help="Name of the agent. Default: the name of the program that starts this."),
    ] = None,
    http: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show the address of MCP over HTTP and exit.")
    ] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> int | None:
    """Connect an agent's program, on stdin and stdout, to the daemon's MCP server.

    Each program is one agent of this host; a second one of the same name gets NAME-2. Without a daemon every tool
    answers with the command that starts one. `posthouse connect` adds this command to the configuration of a program.

    For example:

        posthouse mcp
        posthouse mcp --as reviewer
        posthouse mcp --http
    """
    if http:
        _show_http(daemon_options, output)
        return 0
    from posthouse.mcp.pipe import run
    from posthouse.model.address import validate_agent_name

    options = {
        "--as": None if as_ is None else validate_agent_name(as_),
        "--dir": None if daemon_options.directory is None else str(daemon_options.directory),
        "--mesh": daemon_options.mesh,
    }
    code = run([f"{name}={value}" for name, value in options.items() if value is not None])
    return code if isinstance(code, int) else None


def _show_http(daemon_options: DaemonOptions, output: Output) -> None:
    from posthouse.mcp.streamable_http import PATH

    daemon = daemon_options.location()
    url, token_file = f"http://127.0.0.1:{daemon.port()}{PATH}", str(daemon.directory / "mcp_token")
    output.result({"url": url, "token_file": token_file}, f"MCP over HTTP is at {url}; the token is in {token_file}")
