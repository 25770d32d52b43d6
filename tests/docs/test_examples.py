from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, text_of

EXAMPLES = sorted((ROOT / "examples").glob("*/main.py"))
BOUND_S = 240  # ends an example that hangs; a busy machine takes its time
#: What an example logs on purpose: the exception of a handler that fails.
LOGGED = {"dead_letters": ["handler_failed"]}


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.parent.name)
def test_example_runs_in_an_empty_home(program: Path, tmp_path: Path) -> None:
    name = program.parent.name
    if name == "cluster" and not list(Path("/usr/lib/postgresql").glob("[0-9]*")):
        pytest.skip("the example starts Debian's PostgreSQL, which is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert done.returncode == 0, done.stderr
    logged = re.findall(r"\[(?:error|warning) *\] (\w+)", done.stderr)
    assert (logged, bool(done.stderr)) == (LOGGED.get(name, []), name in LOGGED), done.stderr
    assert done.stdout


def test_every_example_is_in_the_list() -> None:
    folders = [path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]
    listed = text_of("examples/README.md")
    assert EXAMPLES
    assert [name for name in folders if f"[{name}]({name}/" not in listed] == []
