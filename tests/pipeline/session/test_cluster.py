"""A standalone cluster whose workers share nothing but an S3 server gives the same tables as this machine alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from bench.pipeline_stores import make_mixed_store
from posthouse.keys import keyfile
from posthouse.model.codes.spec import Exit
from posthouse.pipeline.audit.audit import audit
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.storage import SCRATCH
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.pipeline.tables.catalog import TABLES
from tests.pipeline.relay import Post, post_office
from tests.pipeline.run.lakes import journal_rows, table_rows
from tests.pipeline.s3 import SECRET
from tests.pipeline.session.cluster import EXECUTORS, Cluster, standalone_cluster
from tests.pipeline.session.cluster_job import PLANTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RUN_S = 400  # for a driver, two executors and every table, on a machine that does other things too
_ROWS = 200
_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_JOB = Path(__file__).with_name("cluster_job.py")


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.xdist_group("spark-programs")
def test_a_cluster_that_shares_only_s3_makes_and_audits_the_same_tables(
    spark: SparkSession, bucket: str, tmp_path: Path
) -> None:
    store = make_mixed_store(tmp_path / "relay", _ROWS)
    keyfile.create(store.with_name("key.json"))
    far, near, planted = Lake(f"{bucket}/lake"), Lake(tmp_path / "near"), Lake(f"{bucket}/planted")
    with standalone_cluster(tmp_path) as cluster, post_office(tmp_path) as post:
        done = _submit(cluster, post, store, far, planted)
        assert done.returncode == Exit.REFUSED, done.stderr  # the audit has findings
        refused, *steps, audited = [json.loads(line) for line in done.stdout.splitlines()]
        assert cluster.executors() == 2 * EXECUTORS  # of the run and of the audit
        shown = [done.stdout, done.stderr, *(path.read_text(errors="replace") for path in cluster.logs())]
    assert refused == {
        "source": "source_not_shared",
        "lake": "lake_files_missing",
        "tables": ["bronze_epochs"],
        "told_committed": False,
    }
    assert max(step["rows"] for step in steps if "versions" in step) >= _ROWS
    derived = [step for step in steps if step.get("code") == "derived_differs"]
    lacking = _count(far, PLANTED) - _count(planted, PLANTED)
    assert 0 < len(derived) <= lacking
    assert all(step["detail"].startswith(f"{PLANTED}: the table lacks the row ") for step in derived)
    found = audit(spark, planted)  # of the rest of the lake, here
    others = [step for step in steps if "code" in step and step not in derived]
    assert {str(step) for step in others} == {str(each._asdict()) for each in found.findings}
    assert audited == {
        **{name: getattr(found, name) for name in ("records", "events", "seals")},
        "derived": len(TABLES),
        "findings": found.total + len(derived),
        "codes": {**found.counts, "derived_differs": len(derived)},
    }
    assert not any(name.startswith(SCRATCH) for name in planted.storage.child_names())
    for lake in (far, near):  # this machine goes on where the cluster ended: the run has left records of its own
        bring_up_to_date(spark, lake, [Access(str(store))])
    assert journal_rows(spark, far) == journal_rows(spark, near)
    made = table_rows(far)
    assert made == table_rows(near)
    assert all(made[name] for name in ("silver_messages", "silver_deliveries", "silver_leases", "silver_refusals"))
    assert not any(SECRET in text for text in shown), "a log shows the key of S3"


def _count(lake: Lake, table: str) -> int:
    """Return the number of rows of a table."""
    return sum(file.rows for file in lake.delta(table).files())


def _submit(cluster: Cluster, post: Post, store: Path, *lakes: Lake) -> subprocess.CompletedProcess[str]:
    flags = ("--source", post.relay.url, "--key-file", str(post.home / "sender.json"), "--json")
    places = [lake.location for lake in lakes]
    (cluster.folder / "driver").mkdir()
    options = {"POSTHOUSE_HOME": str(cluster.folder / "home"), "PYSPARK_PYTHON": sys.executable}
    options |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [str(_SUBMIT), *cluster.flags, str(_JOB), str(store), str(cluster.folder / "driver"), *places, *flags],
        env=os.environ | options,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
