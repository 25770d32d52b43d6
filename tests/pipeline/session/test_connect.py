"""Commands over Spark Connect: a server in the JVM of the tests, the commands as processes without a JVM.

The files that clients of the server send stay in its Spark and fail later tasks of other sessions there. So this test
is the last one of its group that uses the session.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from posthouse.pipeline.lake import Lake
from tests.pipeline.relay import post_office
from tests.pipeline.run.lakes import check_seals
from tests.pipeline.s3 import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMAND_S = 240


@pytest.mark.xdist_group("spark-programs")
def test_run_and_audit_work_over_connect_and_query_says_that_it_does_not(spark: SparkSession, tmp_path: Path) -> None:
    with post_office(tmp_path) as post:
        asyncio.run(post.open_topic("builds"))
        store = str(post.relay.data_dir / "relay.db")
    master = f"sc://127.0.0.1:{_start_server(spark)}"
    lake = Lake(tmp_path / "lake")

    def posthouse(*words: str) -> subprocess.CompletedProcess[str]:
        given = ("--lake", lake.location, "--master", master, "--json")
        return subprocess.run(
            [sys.executable, "-m", "posthouse.cli.main", "pipeline", *words, *given],
            env=os.environ | {"POSTHOUSE_HOME": str(tmp_path / "home"), "JAVA_HOME": "/nowhere"},
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )

    ran = posthouse("run", "--source", store)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout.splitlines()[-1])["rows"]
    assert (rows > 0, check_seals(lake)) == (True, 1)
    audited = posthouse("audit", "--source", store)
    assert audited.returncode == 0, audited.stderr
    assert json.loads(audited.stdout)["findings"] == 0
    asked = posthouse("query", "SHOW TABLES")
    assert asked.returncode == 2
    assert "session_not_classic" in asked.stderr


def _start_server(spark: SparkSession) -> int:
    """Start the server of Connect in the JVM of a session; return its port."""
    port = free_port()
    session: Any = spark
    session._jvm.System.setProperty("spark.connect.grpc.binding.port", str(port))
    session._jsc.sc().conf().set("spark.connect.grpc.binding.port", str(port))
    session._jvm.org.apache.spark.sql.connect.service.SparkConnectService.start(session._jsc.sc())
    return port
