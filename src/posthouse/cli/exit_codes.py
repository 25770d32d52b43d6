"""Run a command line; the one place where a failure becomes an exit code.

Commands raise and return; none prints the error that ends it. A PosthouseError becomes its message, hint and exit code;
any other exception is a defect and becomes `internal`, with a log line that names the source line. Ctrl-C (130) and a
closed output pipe (141) are not failures. Ctrl-C also works below a parent that ignores it, such as a script that
starts the command in the background.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from cyclopts import CycloptsError, UnknownCommandError

from posthouse.cli import overview
from posthouse.cli.commands import build
from posthouse.cli.output import show, show_failure
from posthouse.extras import install_hint
from posthouse.files import NO_SPACE
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, error

INTERRUPTED = 128 + signal.SIGINT  # the exit code a shell reports after Ctrl-C
PIPE_CLOSED = 128 + signal.SIGPIPE
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_PACKAGE = Path(__file__).parent.parent
#: Library -> the extra that installs it.
_EXTRAS = {
    "adbc_driver_manager": "pipeline",
    "adbc_driver_sqlite": "pipeline",
    "bcrypt": "ssh",
    "cryptography": "ssh",
    "deltalake": "pipeline",
    "google": "pinch",
    "jinja2": "console",
    "markupsafe": "console",
    "opentelemetry": "otel",
    "pandas": "pipeline",
    "psycopg": "postgresql",
    "py4j": "pipeline",
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
        _silence(sys.stdout)
        return PIPE_CLOSED
    except SystemExit as ended:  # rich, which writes the help, ends the process at a closed pipe
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return PIPE_CLOSED
    except CycloptsError as failure:
        return _report(_as_usage(failure), tokens)
    except PosthouseError as failure:
        return _report(failure, tokens)
    except OSError as failure:
        if failure.errno in NO_SPACE:
            _silence(sys.stdout)
        return _report(_as_refused_file(failure) or _as_internal(failure, tokens), tokens)
    except Exception as failure:  # noqa: BLE001 - the last handler: any other exception is a defect
        return _report(_as_internal(failure, tokens), tokens)
    return result if isinstance(result, int) else Exit.OK


def _report(failure: PosthouseError, tokens: Sequence[str]) -> int:
    try:
        show_failure(failure, is_json=_wants_json(tokens))
    except OSError:  # stderr is closed or full too: the exit code has to suffice
        _silence(sys.stderr)
    return failure.spec.exit


def _as_usage(failure: CycloptsError) -> PosthouseError:
    failure.verbose = False
    command = " ".join(["posthouse", *(failure.command_chain or ())])
    text, hint = str(failure).strip(), f"Run `{command} --help` to see arguments and examples."
    word = failure.unused_tokens[0] if isinstance(failure, UnknownCommandError) and failure.unused_tokens else ""
    if word.startswith("-"):
        text = f"the option {word} is given where a command is expected"
        hint = f"Write the command first, then its options; `{command} --help` lists the commands."
    code = "check_usage" if command.startswith("posthouse check") else "usage"  # its exit codes have other meanings
    return error(code, text=text, hint=hint)


def _as_refused_file(failure: OSError) -> PosthouseError | None:
    """Return the error for a file or directory that the system refuses; None if the failure may be a defect."""
    if failure.errno in NO_SPACE:
        path = "the output" if failure.filename is None else str(failure.filename)
        return error("disk_full", path=path, reason=failure.strerror)
    if failure.errno in _DENIED and failure.filename is not None:
        return error("file_denied", path=str(failure.filename), reason=failure.strerror)
    if failure.errno == errno.ENOENT and not _has_directory():
        return error("directory_gone")
    return None


def _has_directory() -> bool:
    """Return False if the working directory was removed."""
    try:
        os.getcwd()  # noqa: PTH109 - raises if it was removed
    except FileNotFoundError:
        return False
    return True


def _not_utf8(failure: Exception) -> PosthouseError | None:
    """Return the error for bytes that Python could not decode: it keeps them as surrogates, which cannot be encoded."""
    if isinstance(failure, UnicodeEncodeError) and failure.reason == "surrogates not allowed":
        return error("text_not_utf8")
    return None


def _as_internal(failure: Exception, tokens: Sequence[str]) -> PosthouseError:
    known = _missing_extra(failure) or _stopped_spark(failure) or _not_utf8(failure)
    if known is not None:
        return known
    if "--debug" in _options(tokens):
        show(sys.stderr, "".join(traceback.format_exception(failure)).rstrip())
    reason, where = f"{type(failure).__name__}: {failure}", _source_line(failure)
    if not _wants_json(tokens):
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
    name = "protobuf" if library == "google" else library
    return error("extra_missing", library=name, hint=install_hint(extra))


def _stopped_spark(failure: Exception) -> PosthouseError | None:
    """Return spark_stopped if a call inside py4j, Spark's link to Java, failed because Java ended; else None."""
    frames = traceback.extract_tb(failure.__traceback__)
    is_of_java = any("py4j" in Path(frame.filename).parts for frame in frames)
    if is_of_java:
        from posthouse.pipeline.session.spark import stopped_spark

        if stopped := stopped_spark(failure):
            return stopped
    is_network = isinstance(failure, OSError) or type(failure).__name__ == "Py4JNetworkError"
    reason = f"{type(failure).__name__}: {failure}"
    return error("spark_stopped", reason=reason) if is_of_java and is_network else None


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


def _wants_json(tokens: Sequence[str]) -> bool:
    options = _options(tokens)
    return "--json" in options or "--output=json" in options or ("--output", "json") in pairwise(options)


def _silence(stream: TextIO) -> None:
    """Point a stream at /dev/null: the interpreter flushes it at exit and would report the same failure again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_missing_streams() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed: else the first store to be opened gets its descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: PTH123, SIM115 - a descriptor


def run(tokens: Sequence[str]) -> int:
    """Run the command line of `posthouse` and return its exit code."""
    _open_missing_streams()
    if overview.is_wanted(tokens):
        return run_to_exit_code(lambda _tokens: show(sys.stdout, overview.render()), tokens)
    app = build()
    app.suppress_keyboard_interrupt = False
    return run_to_exit_code(partial(app, exit_on_error=False, print_error=False, result_action="return_value"), tokens)
