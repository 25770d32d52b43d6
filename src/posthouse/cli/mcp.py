"""`posthouse mcp`: serve the Model Context Protocol, so that an agent can use the daemon as its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.flags import flags_of
from posthouse.cli.near import USUAL, Near

if TYPE_CHECKING:
    from posthouse.cli.flags import Flags as McpFlags
    from posthouse.mcp.http.serve import Listening
else:
    McpFlags = flags_of("mcp")


def mcp(
    *,
    http: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Serve streamable HTTP on 127.0.0.1 instead of stdio.")
    ] = False,
    near: Near = USUAL,
    flags: McpFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Serve agents: over stdin and stdout, as their programs start it, or over HTTP for those that do not.

    Whoever calls acts as the member of the daemon. Over HTTP every request needs the token in mcp_token of the
    daemon's directory. `posthouse connect` shows how an agent is told of it.

    For example:

        posthouse mcp
        posthouse mcp --mesh team
        posthouse mcp --http --port 7421
    """
    from posthouse.cli.log import configure_log
    from posthouse.cli.settings import load

    values = load(flags.given() if flags is not None else None)
    configure_log(values)
    wait_max_s = int(str(values["mcp.wait_max_s"].value))
    if not http:
        from posthouse.mcp.stdio import serve_stdio

        serve_stdio(near.place(), wait_max_s)
        return
    from posthouse.mcp.http.serve import serve_http

    serve_http(near.place(), wait_max_s, int(str(values["mcp.port"].value)), lambda where: _say(where, output))


def _say(where: Listening, output: Output) -> None:
    value = {"url": where.url, "token_file": where.token_file}
    output.answer(value, f"posthouse mcp listens on {where.url}; its token is in {where.token_file}")
