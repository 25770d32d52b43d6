"""Entry point of the `posthouse` command.

The programs of agents start some commands again and again, so EARLY finds these by their first word before anything
else is imported: their modules use the standard library alone and are ready in milliseconds. An early command that
does not know its words (--help, an unknown option) leaves them to the whole command line.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would take half of the start-up time of an early command
if TYPE_CHECKING:
    from collections.abc import Sequence

#: first word -> module; its `run(words)` returns an exit code, or None to leave the words to the whole command line
EARLY: dict[str, str] = {"hook": "posthouse.cli.hook", "mcp": "posthouse.mcp.pipe"}


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    given = sys.argv[1:] if tokens is None else tokens
    code = _run_early(given)
    if code is None:
        from posthouse.cli.exit_codes import run

        code = run(given)
    sys.exit(code)


def _run_early(tokens: Sequence[str]) -> int | None:
    module = EARLY.get(tokens[0]) if tokens else None
    if module is None:
        return None
    code: int | None = __import__(module, fromlist=["run"]).run(tokens[1:])
    return code


if __name__ == "__main__":
    main()
