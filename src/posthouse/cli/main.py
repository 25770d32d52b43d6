"""The entry point of the `posthouse` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from posthouse.cli import rim
from posthouse.cli.commands import build


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    given = sys.argv[1:] if tokens is None else tokens
    app = build(eager=not given or given[0].startswith("-"))
    app.suppress_keyboard_interrupt = False
    command = partial(app, exit_on_error=False, print_error=False, result_action="return_value")
    sys.exit(rim.run(command, given))


if __name__ == "__main__":
    main()
