"""A real standalone cluster gives the same tables as this machine alone, our package shipped by the tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run import bring_up_to_date
from posthouse.pipeline.source.store import Access
from tests.pipeline.run.lakes import journal_rows, table_rows
from tests.pipeline.session.cluster import standalone_cluster
from tests.pipeline.stores import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_a_cluster_makes_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    store = GrowingStore(tmp_path / "relay")
    store.grow(300)
    with standalone_cluster(tmp_path) as master:
        given = ("--source", str(store.path), "--lake", str(tmp_path / "far"), "--master", master, "--json")
        told = subprocess.run(
            [sys.executable, "-m", "posthouse.cli.main", "pipeline", "run", *given],
            env=os.environ | {"POSTHOUSE_HOME": str(tmp_path / "home"), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout.splitlines()[-1])["rows"] == 300
    far, near = Lake(tmp_path / "far"), Lake(tmp_path / "near")
    bring_up_to_date(spark, near, [Access(str(store.path))], clock=store.clock)
    assert journal_rows(spark, far) == journal_rows(spark, near)
    assert table_rows(spark, far) == table_rows(spark, near)
