"""Run a command line; the one place where a failure becomes an exit code.

Commands raise and return; they never print an error or end the process. A PosthouseError becomes its message, hint
and exit code; any other exception is a defect and becomes `internal`, with a log line that names the source line.
Ctrl-C (130) and a closed output pipe (141) are not failures.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cyclopts import CycloptsError

from posthouse.cli.commands import build
from posthouse.cli.output import indented, show, write_json
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, error

INTERRUPTED = 128 + signal.SIGINT  # the exit code a shell reports after Ctrl-C
PIPE_CLOSED = 128 + signal.SIGPIPE
_PACKAGE = Path(__file__).parent.parent
#: Library -> the extra that installs it.
_EXTRAS = {
    "aiohttp": "relay",
    "uvloop": "relay",
    "prometheus_client": "relay",
    "adbc_driver_sqlite": "pipeline",
    "deltalake": "pipeline",
    "pyarrow": "pipeline",
    "pyspark": "pipeline",
}


def run_to_exit_code(command: Callable[[Sequence[str]], object], tokens: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = command(tokens)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return PIPE_CLOSED
    except CycloptsError as failure:
        return _report(_as_usage(failure), tokens)
    except PosthouseError as failure:
        return _report(failure, tokens)
    except Exception as failure:  # noqa: BLE001 - the last handler: any other exception is a defect
        return _report(_as_internal(failure, tokens), tokens)
    return result if isinstance(result, int) else Exit.OK


def _report(failure: PosthouseError, tokens: Sequence[str]) -> int:
    if "--json" in _options(tokens):
        write_json(sys.stderr, failure.problem())
    else:
        show(sys.stderr, f"error: {indented(str(failure), 7)}\nhint: {indented(failure.hint, 6)}")
    return failure.spec.exit


def _as_usage(failure: CycloptsError) -> PosthouseError:
    failure.verbose = False
    command = " ".join(["posthouse", *(failure.command_chain or ())])
    hint = f"Run `{command} --help` to see arguments and examples."
    return error("usage", text=str(failure).strip(), hint=hint)


def _as_internal(failure: Exception, tokens: Sequence[str]) -> PosthouseError:
    missing = _missing_extra(failure)
    if missing is not None:
        return missing
    options = _options(tokens)
    if "--debug" in options:
        show(sys.stderr, "".join(traceback.format_exception(failure)).rstrip())
    reason, where = f"{type(failure).__name__}: {failure}", _source_line(failure)
    if "--json" not in options:
        _log_internal(reason, where)
    return error("internal", reason=reason, where=where)


def _missing_extra(failure: Exception) -> PosthouseError | None:
    cause = failure.__cause__ if isinstance(failure.__cause__, ModuleNotFoundError) else failure
    if not isinstance(cause, ModuleNotFoundError) or cause.name is None:
        return None
    library = cause.name.partition(".")[0]
    extra = _EXTRAS.get(library)
    if extra is None:
        return None
    return error("extra_missing", library=library, hint=f"Run `pip install 'posthouse[{extra}]'`.")


def _log_internal(reason: str, where: str) -> None:
    import structlog

    render = structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[structlog.processors.add_log_level, render],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    structlog.get_logger("posthouse").error("internal", reason=reason, where=where)


def _source_line(failure: BaseException) -> str:
    """Return the source line of a failure: the innermost line of posthouse outside this module, else the innermost."""
    frames = traceback.extract_tb(failure.__traceback__)
    if not frames:
        return "unknown"
    ours = [f for f in frames if Path(f.filename).is_relative_to(_PACKAGE) and f.filename != __file__]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"


def _options(tokens: Sequence[str]) -> Sequence[str]:
    return tokens[: tokens.index("--")] if "--" in tokens else tokens


def _silence_stdout() -> None:
    """Point stdout at /dev/null: the interpreter flushes it at exit and would report the closed pipe again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(tokens: Sequence[str]) -> int:
    """Run the command line of `posthouse` and return its exit code."""
    app = build(eager=not tokens or tokens[0].startswith("-"))
    app.suppress_keyboard_interrupt = False
    return run_to_exit_code(partial(app, exit_on_error=False, print_error=False, result_action="return_value"), tokens)
