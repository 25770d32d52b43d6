"""Workers must not load apsw (two SQLite libraries in one process lose rows); quick lookups must not load pyspark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from posthouse.pipeline.session.spark import zip_package

#: Modules whose functions run in workers, or that workers unpickle.
WORKER_MODULES = (
    *("connector.stores", "connector.source_access", "connector.sink_rows", "connector.data_source"),
    *("run.copy_feeds", "session.spark", "audit.spark_audit", "audit.seals", "tables.bronze", "epochs"),
    *("whatif.proposed_rules", "whatif.simulation", "lake.storage", "lake.frame_files"),
)
QUICK_MODULES = ("query", "lake.lookup", "run.copy_feeds", "audit.spark_audit", "whatif.proposed_rules")
_PROGRAM = """
import importlib, json, sys
unwanted, *names = sys.argv[1:]
found = []
for name in names:
    importlib.import_module(f"posthouse.pipeline.{name}")
    if unwanted in sys.modules:
        found.append(name)
        break
print(json.dumps(found))
"""


def first_importer(unwanted: str, names: tuple[str, ...]) -> list[str]:
    """Return the first of the modules whose import loads the unwanted package, or nothing."""
    program = [sys.executable, "-c", _PROGRAM, unwanted, *names]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=120)
    found: list[str] = json.loads(done.stdout)
    return found


def test_worker_modules_do_not_load_apsw() -> None:
    assert first_importer("apsw", WORKER_MODULES) == []


def test_quick_modules_do_not_load_pyspark() -> None:
    assert first_importer("pyspark", QUICK_MODULES) == []


def test_the_check_notices_a_module_that_loads_apsw() -> None:
    assert first_importer("apsw", ("epochs", "audit.stores")) == ["audit.stores"]


def test_workers_can_import_the_package_from_a_zip_with_a_relative_path(tmp_path: Path) -> None:
    zip_package(tmp_path / "posthouse.zip")
    program = "import importlib, sys; sys.path.insert(0, './posthouse.zip')\n" + "\n".join(
        f"print(importlib.import_module('posthouse.pipeline.{name}').__file__)" for name in WORKER_MODULES
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert all("posthouse.zip" in line for line in done.stdout.splitlines())
