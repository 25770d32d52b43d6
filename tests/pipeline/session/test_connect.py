"""Commands over Spark Connect: a server with a Spark of its own, the commands as processes without a JVM."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse.pipeline.lake import Lake
from tests.faults.child import Child
from tests.pipeline.relay import post_office
from tests.pipeline.run.lakes import check_seals

_COMMAND_S = 240


@pytest.mark.xdist_group("spark-programs")
def test_run_and_audit_work_over_connect_and_query_says_that_it_does_not(tmp_path: Path) -> None:
    with post_office(tmp_path) as post:
        asyncio.run(post.open_topic("builds"))
        store = str(post.relay.data_dir / "relay.db")
    with Child("tests.pipeline.session.connect_server") as server:
        master = f"sc://127.0.0.1:{server.wait_lines(1, _COMMAND_S)[0]}"
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
