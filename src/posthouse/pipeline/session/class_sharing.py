"""Class data sharing: an archive of Spark's classes that Java maps into memory instead of loading 280 jars.

With it, a session starts in about half the time. There is one archive per Java, Spark version and location of the jars,
in the user's cache directory (XDG_CACHE_HOME/posthouse/java). A command that starts Spark without an archive does not
wait for one: when it ends, a process of low priority runs posthouse.pipeline.session.train_classes, once. Java ignores
an archive that does not fit its jars, so an archive is never wrong, only useless; deleting the directory is safe.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from posthouse.files import private_dir, write_atomic
from posthouse.model.clock import system_clock
from posthouse.model.limits import DAY_S, SECOND_NS

_KEPT = 3  # archives in the cache: each takes some 200 MB
_RETRY_NS = DAY_S * SECOND_NS  # after an archive could not be made
#: Variables that add directories to Java's class path: an archive must not depend on them.
_FOREIGN = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")
#: Show only errors of Java itself, no warnings about an archive that does not fit.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of the archives."""
    given = environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "posthouse" / "java"


def archive_path(program: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the archive for a Java program and the Spark of this Python."""
    import pyspark

    jars = Path(pyspark.__path__[0]) / "jars"
    real = program.resolve()
    identity = (real, real.stat().st_mtime_ns, jars, jars.stat().st_mtime_ns)
    digest = hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:12]
    return cache_directory(environ) / f"spark-{pyspark.__version__}-{digest}.jsa"


def sharing_options(program: Path, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the options with which Java uses the archive; none if there is no archive yet."""
    archive = archive_path(program, environ)
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET] if archive.is_file() else []


def make_when_done(program: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Make the archive in the background after this process has ended, unless that failed within the last day."""
    failed = failure_note(archive_path(program, environ))
    if not failed.exists() or system_clock().wall_ns() - failed.stat().st_mtime_ns > _RETRY_NS:
        atexit.register(start_maker, program)


def start_maker(program: Path) -> subprocess.Popen[bytes]:
    """Start the process that makes the archive; it outlives this one and writes no output."""
    command = [sys.executable, "-m", "posthouse.pipeline.session.train_classes", str(program)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        ["nice", *command], env=env, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )


def dump_archive(program: Path, class_list: Path, class_path: str, archive: Path) -> None:
    """Write the archive of the listed classes; if Java fails, write the reason next to it."""
    private_dir(archive.parent)
    partial = archive.with_suffix(f".{os.getpid()}.tmp")
    options = [f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={partial}", "-Xlog:disable"]
    try:
        done = subprocess.run(
            [program, "-Xshare:dump", *options, "-cp", class_path], capture_output=True, text=True, check=False
        )
        if done.returncode or not partial.is_file():
            write_atomic(failure_note(archive), (done.stderr or done.stdout or "no archive").encode())
            return
        partial.chmod(0o600)
        partial.rename(archive)
    finally:
        partial.unlink(missing_ok=True)
    failure_note(archive).unlink(missing_ok=True)
    _drop_old(archive)


def failure_note(archive: Path) -> Path:
    """Return the path of the file with the reason why an archive could not be made."""
    return archive.with_suffix(".failed")


def _drop_old(kept: Path) -> None:
    """Delete all but the newest archives; a running Java keeps the one it has mapped."""
    others = [path for path in kept.parent.glob("*.jsa") if path != kept]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[_KEPT - 1 :]:
        path.unlink(missing_ok=True)
