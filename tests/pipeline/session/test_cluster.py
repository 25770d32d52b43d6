"""A real standalone cluster gives the same tables as this machine alone, our package shipped by the tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.pipeline_stores import make_mixed_store
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.lake_run import bring_up_to_date
from tests.pipeline.run.lakes import journal_rows, table_rows
from tests.pipeline.session.cluster import Cluster, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RUN_S = 400  # for a driver, two executors and every table, on a machine that does other things too
_ROWS = 200


@pytest.mark.slow
@pytest.mark.xdist_group("spark-programs")
def test_a_cluster_makes_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    store = make_mixed_store(tmp_path / "relay", _ROWS)
    far, near = Lake(tmp_path / "far"), Lake(tmp_path / "near")
    with standalone_cluster(tmp_path) as cluster:
        done = _run(cluster, store, far)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["rows"] == _ROWS
        assert all(cluster.executors()), "a worker had nothing to do"
    bring_up_to_date(spark, near, [Access(str(store))])
    assert journal_rows(spark, far) == journal_rows(spark, near)
    made = table_rows(far)
    assert made == table_rows(near)
    assert all(made[name] for name in ("silver_messages", "silver_deliveries", "silver_leases", "silver_refusals"))


def _run(cluster: Cluster, store: Path, lake: Lake) -> subprocess.CompletedProcess[str]:
    given = ("--source", str(store), "--lake", str(lake.path), "--master", cluster.url, "--json")
    return subprocess.run(
        [sys.executable, "-m", "posthouse.cli.main", "pipeline", "run", *given],
        env=os.environ | cluster.environ | {"POSTHOUSE_HOME": str(cluster.folder / "home")},
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
