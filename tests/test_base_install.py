"""The wheel in an environment of its own, without extras: its size, what works, and how it names what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.release import ROOT, UV, build, install, run, smoke
from tests.docs.session import BOUND_S

DOWNLOAD_MIB = 30
INSTALLED_MIB = 70
OTHER_PYTHONS = [each for each in ("3.11", "3.12", "3.13") if each != f"3.{sys.version_info.minor}"]
HEAVY = ("pyarrow", "pandas", "protobuf", "pyspark", "cryptography", "bcrypt", "uvloop", "jinja2", "psycopg")

pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not installed: run scripts/setup")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what the base depends on, in the versions of uv.lock."""
    return install(wheel, tmp_path_factory.mktemp("base") / "env")


def attempt(*words: object, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("POSTHOUSE_", "PYTHONPATH"))}
    if home is not None:
        environ["POSTHOUSE_HOME"] = str(home)
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=BOUND_S)


def test_base_install_is_small_and_has_none_of_the_heavy_libraries(base: Path) -> None:
    assert sum(each.stat().st_size for each in installed_files(base)) < INSTALLED_MIB << 20
    installed = run(UV, "pip", "list", "--format", "freeze", "--python", base / "bin" / "python")
    assert [name for name in HEAVY if f"{name}==" in installed.casefold()] == []


def test_base_install_is_a_small_download(base: Path, tmp_path: Path) -> None:
    """Pack what was installed as wheels pack it: the size of the download, without a download."""
    packed = tmp_path / "base.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in installed_files(base):
            archive.write(file, file.relative_to(base))
    assert (DOWNLOAD_MIB << 20) // 10 < packed.stat().st_size < DOWNLOAD_MIB << 20


def installed_files(environment: Path) -> list[Path]:
    files = [each for each in (environment / "lib").rglob("*") if each.is_file() and not each.is_symlink()]
    return [each for each in files if each.suffix != ".pyc"]


def test_two_agents_exchange_a_message_with_the_base_install(base: Path, tmp_path: Path) -> None:
    smoke(base / "bin" / "posthouse", tmp_path / "home")


@pytest.mark.parametrize(("example", "extra"), [("pinch_agent", "pinch"), ("cluster", "postgresql")])
def test_example_that_needs_an_extra_names_it(base: Path, wheel: Path, example: str, extra: str) -> None:
    if example == "cluster" and not list(Path("/usr/lib/postgresql").glob("[0-9]*")):
        pytest.skip("the example starts Debian's PostgreSQL, which is not installed")
    done = attempt(base / "bin" / "python", ROOT / "examples" / example / "main.py")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert f"{wheel}[{extra}]" in done.stderr
    assert f"extra `{extra}`" in " ".join((ROOT / "examples" / "README.md").read_text().split())


@pytest.mark.parametrize("example", ["team_of_three", "nightly_job", "two_hosts_daemon", "review_pipeline"])
def test_example_of_a_team_at_work_runs_with_the_base_install(base: Path, tmp_path: Path, example: str) -> None:
    done = attempt(base / "bin" / "python", ROOT / "examples" / example / "main.py", home=tmp_path / "home")
    assert done.returncode == 0, done.stderr


def find_python(version: str) -> str | None:
    """Return an interpreter that uv finds, or one of pyenv, which hides those that are not chosen."""
    found = attempt(UV, "python", "find", "--no-python-downloads", version)
    if found.returncode == 0:
        return found.stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    with suppress(PermissionError):  # of another user
        return next((str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python{version}")), None)
    return None


@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_two_agents_talk_on_a_bus_of_another_python(wheel: Path, tmp_path: Path, version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    environment = install(wheel, tmp_path / "env", python=python)
    assert f"Python {version}." in run(environment / "bin" / "posthouse", "version")
    run(environment / "bin" / "python", ROOT / "examples" / "two_agents" / "main.py", tmp_path / "bus")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("console", "--no-browser"), "console"),
        (("pipeline", "show", "cost"), "pipeline"),
        (("relay", "up", "--listen", "127.0.0.1:0", "--pinch-host", "relay.example"), "pinch"),
        (("relay", "up", "--listen", "127.0.0.1:0", "--store", "postgresql://localhost/posthouse"), "postgresql"),
        (("up", "--listen", "0.0.0.0:0"), "ssh"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_missing_extra_is_named_with_the_command_that_installs_it(
    base: Path, wheel: Path, tmp_path: Path, words: tuple[str, ...], extra: str
) -> None:
    done = attempt(base / "bin" / "posthouse", *words, home=tmp_path / "home")
    assert done.returncode != 0
    assert f"pip install '{wheel}[{extra}]'" in done.stderr
