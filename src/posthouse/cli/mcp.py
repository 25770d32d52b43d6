"""`posthouse mcp`: serve the Model Context Protocol over stdio or HTTP; and the command line that starts it.

A caller acts as the daemon's member; over HTTP every request needs the token in the file mcp_token of the daemon's
directory. `posthouse connect` writes the command line that `server_entry` returns: it names this installation of
posthouse by its path and the chosen daemon.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.config import flags_of
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.files import HOME_ENV, home_directory

if TYPE_CHECKING:
    from posthouse.cli.config import Flags as McpFlags
    from posthouse.mcp.streamable_http import Listening
else:
    McpFlags = flags_of("mcp")


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
    """Return the command line that starts `posthouse mcp` for a daemon, for the agent of a name."""
    from posthouse.cli.service import program

    options = [] if agent is None else ["--as", agent]
    options += [] if daemon_options.mesh is None else ["--mesh", daemon_options.mesh]
    if daemon_options.directory is not None:
        options += ["--dir", str(daemon_options.location().directory)]
    command, *rest = program()
    env = {HOME_ENV: str(home_directory(environ))} if environ.get(HOME_ENV) else {}
    return ServerEntry(command, (*rest, "mcp", *options), env)


def mcp(
    *,
    http: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Serve streamable HTTP on 127.0.0.1 instead of stdio.")
    ] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    flags: McpFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Serve the Model Context Protocol to agents, over stdin and stdout or over HTTP.

    The agent acts as the daemon's member. Over HTTP every request needs the token in the file mcp_token of the
    daemon's directory. `posthouse connect` adds the server to the configuration of an agent.

    For example:

        posthouse mcp
        posthouse mcp --mesh team
        posthouse mcp --http --port 7421
    """
    from posthouse.cli.config import load_settings
    from posthouse.cli.log import log_to_stderr

    values = load_settings(flags.given() if flags is not None else None)
    log_to_stderr(values)
    wait_max_s = values.integer("mcp.wait_max_s")
    if not http:
        from posthouse.mcp.server import serve_stdio

        serve_stdio(daemon_options.location(), wait_max_s)
        return
    from posthouse.mcp.streamable_http import serve_http

    serve_http(
        daemon_options.location(),
        wait_max_s,
        values.integer("mcp.port"),
        lambda listening: _announce(listening, output),
    )


def _announce(listening: Listening, output: Output) -> None:
    value = {"url": listening.url, "token_file": listening.token_file}
    output.result(value, f"the MCP server listens on {listening.url}; the token is in {listening.token_file}")
