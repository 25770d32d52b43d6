"""The hooks of coding agents: the command that they run, with its help.

The hook itself is in `hook`, which loads none of this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.output import PLAIN, Output


def hook(
    program: Annotated[str, Parameter(help="The coding agent that runs the hook, such as claude-code.")],
    event: Annotated[str, Parameter(help="session-start, prompt, tool, turn-end, session-end or wait.")],
    /,
    *,
    as_: Annotated[
        str | None,
        Parameter(name="--as", help="Name of the agent. Default: POSTHOUSE_AGENT, else the name of the program."),
    ] = None,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Directory of the daemon. Default: ~/.posthouse/daemon.")
    ] = None,
    output: Output = PLAIN,
) -> int:
    """Report an event of a coding agent's session to the daemon, and print how much mail waits for the agent.

    `posthouse connect PROGRAM --wake` installs this command as a hook of the program. It reads the program's JSON on
    stdin and answers in the program's format. It ends with exit code 0, silent if the daemon is down.

    For example:

        posthouse hook claude-code prompt < input.json
        posthouse hook claude-code wait
    """
    from posthouse.cli.hook import run

    words = [program, event]
    words += [] if as_ is None else ["--as", as_]
    words += [] if directory is None else ["--dir", str(directory)]
    return run(words) or 0
