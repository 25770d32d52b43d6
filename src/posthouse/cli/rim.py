"""The rim of the command line: every failure becomes one message, one hint and one exit code here.

Commands raise and return; they never print an error or end the process. A failure that is not a
PosthouseError is a defect and becomes `internal`, with a log line that says where. Ctrl-C and a reader that
went away are no failures.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from cyclopts import CycloptsError

from posthouse.cli.console import show, write_json
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, error

INTERRUPTED = 128 + signal.SIGINT  # what a shell reports for a process that Ctrl-C ended
READER_GONE = 128 + signal.SIGPIPE

_PACKAGE = Path(__file__).parent.parent

#: Which extra brings a library that not every installation has.
_EXTRAS = {
    "aiohttp": "relay",
    "uvloop": "relay",
    "prometheus_client": "relay",
    "adbc_driver_sqlite": "pipeline",
    "deltalake": "pipeline",
    "pyarrow": "pipeline",
    "pyspark": "pipeline",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "anyio": "mcp",
    "uvicorn": "mcp",
}


def run(command: Callable[[Sequence[str]], object], tokens: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = command(tokens)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return READER_GONE
    except CycloptsError as failure:
        return _report(_as_usage(failure), tokens)
    except PosthouseError as failure:
        return _report(failure, tokens)
    except Exception as failure:  # noqa: BLE001 - the rim is where everything else ends
        return _report(_as_internal(failure, tokens), tokens)
    return result if isinstance(result, int) else Exit.OK


def _report(failure: PosthouseError, tokens: Sequence[str]) -> int:
    if "--json" in _options(tokens):
        write_json(sys.stderr, failure.problem())
    else:
        show(sys.stderr, f"error: {failure}\nhint: {failure.hint}")
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
    reason, where = f"{type(failure).__name__}: {failure}", _place(failure)
    if "--json" not in options:
        _log(reason, where)
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


def _log(reason: str, where: str) -> None:
    import structlog

    render = structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[structlog.processors.add_log_level, render],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    structlog.get_logger("posthouse").error("internal", reason=reason, where=where)


def _place(failure: BaseException) -> str:
    """Say which line it came from: the innermost of posthouse below the rim, else the innermost of all."""
    frames = traceback.extract_tb(failure.__traceback__)
    if not frames:
        return "unknown"
    ours = [f for f in frames if Path(f.filename).is_relative_to(_PACKAGE) and f.filename != __file__]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"


def _options(tokens: Sequence[str]) -> Sequence[str]:
    return tokens[: tokens.index("--")] if "--" in tokens else tokens


def _silence_stdout() -> None:
    """Point stdout at nothing, or the interpreter's last flush would complain about the closed pipe again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
