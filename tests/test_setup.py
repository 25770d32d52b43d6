"""scripts/setup, in a tree of its own with an interpreter that only writes down what it is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[1] / "scripts" / "setup"
INTERPRETER = """\
#!/bin/sh
here=$(dirname "$0")
case "$*" in
    --version) echo 'Python 3.11.0' ;;
    *'pip install'*)
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
        (root / "pyproject.toml").write_text("[project]\n")
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
        calls = self.bin / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


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


def test_failed_install_shows_why_and_is_tried_again(tree: Tree) -> None:
    (tree.bin / "broken").touch()
    done = tree.setup()
    assert done.returncode == 1
    assert "no wheel" in done.stderr
    assert "error: pip could not install posthouse\nhint: " in done.stderr
    (tree.bin / "broken").unlink()
    assert tree.setup().returncode == 0
    assert tree.installs() == 2


def test_interpreter_that_is_not_there_is_named_with_a_hint(tree: Tree) -> None:
    (tree.bin / "python").unlink()
    done = tree.setup(PYTHON="/nonexistent/python")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no Python 3.11 or newer at /nonexistent/python\nhint: ")
