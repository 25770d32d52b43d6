"""Entry point of the `posthouse` command.

The programs of agents start some commands again and again, so EARLY finds these by their first word before anything
else is imported: their modules use the standard library alone and are ready in milliseconds. An early command leaves
words that it does not know (--help, an unknown option) to the full command line. The version and the list of commands
are also printed this early.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
    from collections.abc import Sequence

#: first word -> module; its `run(words)` returns an exit code, or the words that the full command line continues with
EARLY: dict[str, str] = {
    "hook": "posthouse.cli.hook",
    "mcp": "posthouse.mcp.pipe",
    "send": "posthouse.cli.early_send",
}
#: A command makes many modules and little garbage: with the default of 700 the collector takes a tenth of its time.
_GC_THRESHOLD = 50_000


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    is_own_process = tokens is None  # else the settings of the calling program's collector stay as they are
    if is_own_process:
        gc.set_threshold(_GC_THRESHOLD)
        take_interrupts()
    try:
        done = _run_early(sys.argv[1:] if tokens is None else tokens)
        if not isinstance(done, int):
            from posthouse.cli.exit_codes import run

            done = run(done)
    except KeyboardInterrupt:  # while modules were imported; exit_codes handles it later
        done = 130
    if is_own_process:
        gc.freeze()  # the process ends: the collector need not scan the modules a last time
    sys.exit(done)


def take_interrupts() -> None:
    """Let Ctrl-C end this process even if its parent ignores it, as a shell does for a background command."""
    # signal itself imports enum, which takes longer than an early command
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) == _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def _run_early(tokens: Sequence[str]) -> int | Sequence[str]:
    if list(tokens) in (["version"], ["--version"]):
        from posthouse.version import version_line

        return _write(f"{version_line()}\n", tokens)
    if not tokens or tokens[0].startswith("-"):
        from posthouse.cli import overview

        return _write(f"{overview.render()}\n", tokens) if overview.is_wanted(tokens) else tokens
    module = EARLY.get(tokens[0])
    if module is None:
        return tokens
    done: int | Sequence[str] = __import__(module, fromlist=["run"]).run(tokens[1:])
    return done if isinstance(done, int) else [tokens[0], *done]


def _write(text: str, tokens: Sequence[str]) -> int | Sequence[str]:
    """Write the answer; if stdout is full, gone or closed leave it to the full command line, which reports it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, AttributeError):
        return tokens
    return 0


if __name__ == "__main__":
    main()
