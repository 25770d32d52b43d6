"""A server of questions whose Java is killed, as the system does when memory is short."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.pipeline_growth import family
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.serve import SOCKET_NAME, ask_server
from tests.faults.child import Child
from tests.pipeline.filled_lake import fill_lake
from tests.pipeline.quick_start import quick_environment
from tests.pipeline.stores import GrowingStore

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-programs")]
_PATIENCE_S = 600  # Spark on a loaded machine takes its time


def running_javas() -> set[int]:
    return {each.pid for each in family() if each.name == "java"}


def test_server_whose_java_is_killed_ends_and_leaves_its_question_to_another_spark(tmp_path: Path) -> None:
    store, lake, others = GrowingStore(tmp_path / "relay"), Lake(tmp_path / "lake"), running_javas()
    store.grow(3)
    fill_lake(lake, store.path)
    flags = ("--lake", lake.path, "--master", "local[1]", "--no-cds", "--json")
    env = {"POSTHOUSE_HOME": str(tmp_path / "home")} | quick_environment()
    with Child("posthouse.cli.main", "pipeline", "serve", *flags, env=env) as child:
        child.wait_lines(1, _PATIENCE_S)
        (java,) = running_javas() - others
        os.kill(java, signal.SIGKILL)
        assert ask_server(lake.path, "SELECT 1", 1) is None
        assert child.wait(_PATIENCE_S) == 3
    assert "spark_stopped" in child.errors and "SIGKILL" in child.errors
    assert "Traceback" not in child.errors
    assert not (lake.path / SOCKET_NAME).exists()
