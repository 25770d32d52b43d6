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


NPM = """\
#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/npm-calls"
if [ -e "$here/offline" ]; then echo 'no registry'; exit 1; fi
mkdir -p clients/typescript/node_modules
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
        self.lock = root / "clients" / "typescript" / "package-lock.json"

    def add_client(self) -> None:
        """Add the TypeScript client, and an npm that only writes down what it is asked."""
        self.lock.parent.mkdir(parents=True)
        self.lock.write_text("{}")
        (self.bin / "npm").write_text(NPM)
        (self.bin / "npm").chmod(0o755)

    def setup(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": "/nonexistent", **environ}
        command = [str(self.root / "scripts" / "setup"), *words]
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


def test_setup_for_a_run_installs_no_tools_and_the_whole_setup_covers_it(tree: Tree) -> None:
    assert tree.setup("run").returncode == 0
    assert "--extra console" in tree.calls("calls")[0]
    assert "dev" not in tree.calls("calls")[0]
    assert tree.setup("run").stdout == ""
    assert tree.setup().returncode == 0
    assert "--extra all --extra dev" in tree.calls("calls")[1]
    (tree.bin.parent / ".posthouse-setup-run").unlink()
    assert tree.setup("run").stdout == ""
    assert tree.installs() == 2


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


def test_packages_of_the_typescript_client_are_installed_once_and_again_when_its_lock_changed(tree: Tree) -> None:
    tree.add_client()
    assert "TypeScript" in tree.setup().stdout
    assert tree.setup().stdout == ""
    assert [call.split()[:3] for call in tree.calls("npm-calls")] == [["ci", "--prefix", "clients/typescript"]]
    tree.lock.write_text("{ }")
    tree.setup()
    assert len(tree.calls("npm-calls")) == 2


def test_failed_npm_is_a_warning_with_the_reason_and_is_tried_again(tree: Tree) -> None:
    assert tree.setup().returncode == 0
    tree.add_client()
    (tree.bin / "offline").touch()
    done = tree.setup()
    assert done.returncode == 0
    assert "no registry\nwarning: npm could not install" in done.stderr
    (tree.bin / "offline").unlink()
    assert tree.setup().stderr == ""
    assert len(tree.calls("npm-calls")) == 2


def test_interpreter_that_is_not_there_is_named_with_a_hint(tree: Tree) -> None:
    (tree.bin / "python").unlink()
    done = tree.setup(PYTHON="/nonexistent/python")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no Python 3.11 or newer at /nonexistent/python\nhint: ")


def test_environment_of_another_version_than_the_named_interpreter_is_made_again(tree: Tree) -> None:
    assert tree.setup().returncode == 0
    newer = tree.root / "python3.12"
    newer.write_text(
        INTERPRETER.replace("3.11.0", "3.12.0") + 'case "$*" in *--clear*) cp "$0" .venv/bin/python ;; esac\n'
    )
    newer.chmod(0o755)
    assert "making .venv with Python 3.12.0" in tree.setup(PYTHON=str(newer)).stdout
    assert tree.installs() == 2
    assert tree.setup(PYTHON=str(newer)).stdout == ""
