"""The workers of a test run share files and groups as tests/scheduling.py says, and a test that hangs fails by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

_BOUND_S = 240
_CONFTEST = "from tests.conftest import pytest_collection_modifyitems, pytest_xdist_make_scheduler\n"
_FILE = """\
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(4))
{mark}
def test_it(number):
    with (pathlib.Path(__file__).parent / "ran").open("a") as ran:
        ran.write("{unit} " + os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""
_HANGS = """\
import threading
import pytest

@pytest.mark.timeout(0.5)
def test_that_hangs():
    threading.Event().wait()
"""
_UNITS = {"test_a": "together", "test_b": "", "test_c": "", "test_d": "together"}


def test_a_group_and_a_file_stay_in_one_worker_and_a_test_that_hangs_fails_by_name(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert float(request.config.getini("timeout")) > 0
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, group in _UNITS.items():
        mark = f'@pytest.mark.xdist_group("{group}")' if group else ""
        (tmp_path / f"{name}.py").write_text(_FILE.format(mark=mark, unit=group or name))
    (tmp_path / "test_e.py").write_text(_HANGS)
    command = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", ".")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=_BOUND_S, check=False
    )
    assert "1 failed, 16 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_e.py::test_that_hangs - Failed: Timeout" in done.stdout
    assert "threading.Event().wait()" in done.stdout, "it shows where the test stood"
    assert "sched]" not in done.stdout + done.stderr, "the scheduler talks"
    workers: dict[str, set[str]] = defaultdict(set)
    for line in (tmp_path / "ran").read_text().splitlines():
        unit, worker = line.split()
        workers[unit].add(worker)
    assert {unit: len(used) for unit, used in workers.items()} == {"together": 1, "test_b": 1, "test_c": 1}
    assert len(set.union(*workers.values())) == 2
