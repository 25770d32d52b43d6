"""scripts/setup, in a tree of its own with an interpreter that only writes down what it is asked."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETUP = ROOT / "scripts" / "setup"
INTERPRETER = """\
#!/bin/sh
here=$(dirname "$0")
case "$*" in
    --version) echo 'Python 3.11.0' ;;
    *'pip install'*)
        echo "$*" >>"$here/bootstraps"
        if [ -e "$here/offline" ]; then echo 'no network'; exit 1; fi ;;
    *'uv sync'*)
        echo "$*" >>"$here/calls"
        if [ -e "$here/broken" ]; then echo 'no wheel'; exit 1; fi ;;
esac
"""


class Tree:
    """A clone with a virtual environment that is there already."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "scripts").mkdir()
        shutil.copy(SETUP, root / "scripts" / "setup")
        (root / "scripts" / "uv.txt").write_text("uv==1\n")
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "uv.lock").write_text("version = 1\n")
        self.bin = root / ".venv" / "bin"
        self.bin.mkdir(parents=True)
        (self.bin / "python").write_text(INTERPRETER)
        (self.bin / "python").chmod(0o755)

    def setup(self, **environ: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ}
        command = [str(self.root / "scripts" / "setup")]
        return subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )

    def installs(self) -> int:
        return len(self.calls("calls"))

    def calls(self, name: str) -> list[str]:
        calls = self.bin / name
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_setup_installs_once_and_again_only_when_the_project_changed(tree: Tree) -> None:
    assert tree.setup().returncode == 0
    assert tree.installs() == 1
    assert tree.setup().stdout == ""
    assert tree.installs() == 1
    (tree.root / "pyproject.toml").write_text("[project]\ndependencies = []\n")
    assert tree.setup().returncode == 0
    assert tree.installs() == 2
    (tree.root / "uv.lock").write_text("version = 2\n")
    assert tree.setup().returncode == 0
    assert tree.installs() == 3


def test_setup_installs_only_what_the_lock_names_by_hash(tree: Tree) -> None:
    assert tree.setup().returncode == 0
    assert "--require-hashes --requirement scripts/uv.txt" in tree.calls("bootstraps")[0]
    assert "uv sync --quiet --locked" in tree.calls("calls")[0]


def test_the_installer_is_the_version_that_the_lock_names() -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    [version] = [package["version"] for package in locked if package["name"] == "uv"]
    installer = (ROOT / "scripts" / "uv.txt").read_text()
    assert f"uv=={version} \\\n    --hash=sha256:" in installer


def test_setup_without_network_says_so_and_installs_nothing(tree: Tree) -> None:
    (tree.bin / "offline").touch()
    done = tree.setup()
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert "error: pip could not install uv\nhint: " in done.stderr
    assert tree.installs() == 0


def test_failed_install_shows_why_and_is_tried_again(tree: Tree) -> None:
    (tree.bin / "broken").touch()
    done = tree.setup()
    assert done.returncode == 1
    assert "no wheel" in done.stderr
    assert "error: uv could not install posthouse\nhint: " in done.stderr
    (tree.bin / "broken").unlink()
    assert tree.setup().returncode == 0
    assert tree.installs() == 2


def test_interpreter_that_is_not_there_is_named_with_a_hint(tree: Tree) -> None:
    (tree.bin / "python").unlink()
    done = tree.setup(PYTHON="/nonexistent/python")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no Python 3.11 or newer at /nonexistent/python\nhint: ")
