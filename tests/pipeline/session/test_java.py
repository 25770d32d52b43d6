"""Which Java Spark runs on, and that the one of the package is enough."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.session.java import (
    Origin,
    choose_java,
    java_home_of,
    packaged_java,
    probe_version,
    real_program,
)

PACKAGED = Path("/package/bin/java")


def java_at(directory: Path) -> Path:
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_java_home_goes_before_path_and_package(tmp_path: Path) -> None:
    java_at(tmp_path / "path")
    environ = {"JAVA_HOME": "/home", "PATH": str(tmp_path / "path")}
    chosen = choose_java(environ, PACKAGED, lambda _: 17)
    assert (chosen.program, chosen.origin) == (Path("/home/bin/java"), Origin.JAVA_HOME)


def test_a_java_that_is_too_old_counts_as_none(tmp_path: Path) -> None:
    on_path = java_at(tmp_path / "path")
    environ = {"JAVA_HOME": "/home", "PATH": str(tmp_path / "path")}
    chosen = choose_java(environ, PACKAGED, lambda program: 11 if program != on_path else 21)
    assert (chosen.program, chosen.origin, chosen.version) == (on_path, Origin.PATH, 21)


def test_without_a_java_of_the_machine_the_package_serves() -> None:
    chosen = choose_java({"PATH": "/nowhere"}, PACKAGED, lambda _: 25)
    assert (chosen.program, chosen.origin) == (PACKAGED, Origin.PACKAGE)


def test_no_java_at_all_is_told_with_what_was_seen() -> None:
    with pytest.raises(PosthouseError) as refused:
        choose_java({"JAVA_HOME": "/old", "PATH": ""}, None, lambda _: 8)
    assert refused.value.code == "java_missing"
    assert "JAVA_HOME has version 8" in str(refused.value)
    assert "[pipeline]" in refused.value.hint


def test_a_java_home_that_holds_no_java_is_passed_over(tmp_path: Path) -> None:
    chosen = choose_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, packaged_java(), probe_version)
    assert chosen.origin is Origin.PACKAGE
    assert chosen.version >= 17


def test_the_shim_hands_on_every_option_but_the_module_that_is_lacking(tmp_path: Path) -> None:
    echo = tmp_path / "it's echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    home = java_home_of(echo, tmp_path / "home")
    options = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "$HOME", "", "Main"]
    done = subprocess.run([home / "bin" / "java", *options], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split("\n")[:-1] == ["-cp", "a b", "$HOME", "", "Main"]


def test_a_process_that_inherits_the_shim_finds_the_program_behind_it(tmp_path: Path) -> None:
    real = java_at(tmp_path / "jdk" / "bin")
    place = tmp_path / "home"
    home = java_home_of(real, place)
    inherited = choose_java({"JAVA_HOME": str(home), "PATH": ""}, None, lambda _: 17)
    assert inherited.program == real
    assert java_home_of(inherited.program, place) == java_home_of(home / "bin" / "java", place) == home
    subprocess.run([home / "bin" / "java"], check=True, timeout=30)  # a shim of itself would never end


def test_two_programs_have_a_shim_each(tmp_path: Path) -> None:
    programs = [java_at(tmp_path / name / "bin") for name in ("one", "two")]
    homes = [java_home_of(program, tmp_path / "home") for program in programs]
    assert [real_program(home / "bin" / "java") for home in homes] == programs


@pytest.mark.slow
@pytest.mark.xdist_group("spark-programs")
def test_spark_starts_where_no_java_is_installed(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "readlink", "ps", "cat", "env", "id"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    environ |= {"PATH": str(tools), "POSTHOUSE_HOME": str(tmp_path / "home")}
    script = (
        "from posthouse.pipeline.session import spark_session\n"
        "spark = spark_session('local[1]', uses_cds=False)\n"  # no archive for a Java that only this test starts
        "print(spark.range(7).count(), spark._jvm.System.getProperty('java.version'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    packaged = packaged_java()
    assert packaged is not None
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "7"
    assert done.stdout.split()[1].startswith(str(probe_version(packaged)))
