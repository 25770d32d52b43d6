"""The archive of Spark's classes: made once, used from then on, and never in the way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from posthouse.pipeline.session.class_sharing import (
    archive_path,
    cache_directory,
    dump_archive,
    failure_note,
    make_when_done,
    sharing_options,
)
from posthouse.pipeline.session.java import find_java
from posthouse.pipeline.session.train_classes import make_archive


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return {"XDG_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def java() -> Path:
    return find_java().program


def test_options_name_the_archive_once_it_exists(environ: dict[str, str], java: Path) -> None:
    assert sharing_options(java, environ) == []
    archive = archive_path(java, environ)
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in sharing_options(java, environ)


def test_each_java_has_an_archive_of_its_own(environ: dict[str, str], java: Path, tmp_path: Path) -> None:
    other = tmp_path / "java"
    other.touch()
    assert archive_path(other, environ) != archive_path(java, environ)
    assert archive_path(java.resolve(), environ) == archive_path(java, environ)
    assert cache_directory({}) == Path.home() / ".cache" / "posthouse" / "java"


def test_java_starts_from_a_dumped_archive(environ: dict[str, str], java: Path, tmp_path: Path) -> None:
    """A tiny archive of Java's own classes; the archive of Spark is made in the same way from a longer list."""
    listed = tmp_path / "classes"
    listed.write_text("java/lang/Object\njava/util/TreeMap\n")
    archive = archive_path(java, environ)
    dump_archive(java, listed, "/nowhere.jar", archive)
    assert archive.is_file() and archive.stat().st_mode & 0o777 == 0o600
    assert archive.parent.stat().st_mode & 0o777 == 0o700
    assert list(archive.parent.glob("*.tmp")) == []
    done = subprocess.run(
        [java, *sharing_options(java, environ), "-Xshare:on", "-version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_failure_is_noted_and_not_repeated_within_a_day(
    environ: dict[str, str], java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("atexit.register", lambda *given: started.append(given))
    archive = archive_path(java, environ)
    dump_archive(java, tmp_path / "no list", "/nowhere.jar", archive)
    assert failure_note(archive).read_text() and sharing_options(java, environ) == []
    make_when_done(java, environ)
    assert started == []
    long_ago = failure_note(archive).stat().st_mtime - 2 * 24 * 3600
    os.utime(failure_note(archive), (long_ago, long_ago))
    make_when_done(java, environ)
    assert len(started) == 1


def test_only_one_process_makes_an_archive(
    environ: dict[str, str], java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posthouse.files import locked, private_dir
    from posthouse.pipeline.session import train_classes

    made: list[Path] = []
    monkeypatch.setattr(train_classes, "_make", lambda _program, archive: made.append(archive))
    archive = archive_path(java, environ)
    private_dir(archive.parent)
    with locked(archive.with_suffix(".lock")):
        make_archive(java)
    assert made == []
    make_archive(java)
    assert made == [archive]
    archive.touch()
    make_archive(java)
    assert made == [archive]


def test_old_archives_make_room(environ: dict[str, str], java: Path, tmp_path: Path) -> None:
    folder = cache_directory(environ)
    folder.mkdir(parents=True, mode=0o700)
    for number in range(5):
        old = folder / f"spark-{number}.jsa"
        old.touch()
        os.utime(old, (number, number))
    listed = tmp_path / "classes"
    listed.write_text("java/lang/Object\n")
    dump_archive(java, listed, "/nowhere.jar", archive_path(java, environ))
    names = {path.name for path in folder.glob("*.jsa")}
    assert names == {"spark-3.jsa", "spark-4.jsa", archive_path(java, environ).name}
