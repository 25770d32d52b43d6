"""The session that every part of the pipeline shares."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext
from pyspark.sql import functions as f

from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.session import spark as spark_module
from posthouse.pipeline.session import spark_session
from tests.faults.child import Child
from tests.pipeline.quick_start import QUICK_START

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_a_process_has_one_session(spark: SparkSession) -> None:
    assert spark_session("local[1]") is spark


def test_times_are_utc_and_parquet_keeps_them_in_microseconds(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"


def test_other_users_cannot_read_what_spark_spills(spark: SparkSession) -> None:
    scratch = Path(str(spark.conf.get("spark.local.dir")))
    spark.range(1_000).repartition(3).groupBy(f.col("id") % 7).count().collect()
    modes = []
    for path in scratch.rglob("*"):
        if path.suffix in (".data", ".index"):
            with contextlib.suppress(FileNotFoundError):  # Spark removes those of earlier plans when it likes
                modes.append(path.stat().st_mode)
    assert modes, "the shuffle left no file to look at"
    assert [oct(mode) for mode in modes if mode & 0o077] == []


def test_spark_keeps_its_warehouse_out_of_the_working_directory(spark: SparkSession) -> None:
    spark.sql("SHOW TABLES").collect()
    assert not Path("spark-warehouse").exists()
    place = spark.conf.get("spark.sql.warehouse.dir")
    assert place is not None and Path(place.removeprefix("file:")).is_dir()


def test_scratch_directory_is_private_and_goes_after_its_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Child("tests.pipeline.session.scratch_user", env={"TMPDIR": str(tmp_path)}) as child:
        left = Path(child.wait_lines(1)[0])
        mine = Path(spark_module.scratch_directory())
        assert mine.stat().st_mode & 0o777 == left.stat().st_mode & 0o777 == 0o700
        assert (left / "text").exists(), "its process lives"
    spark_module.scratch_directory()
    assert (left.exists(), mine.exists()) == (False, True)


@pytest.mark.parametrize(
    ("master", "is_local"),
    [("local", True), ("local[*]", True), ("local[2,3]", True), ("local-cluster[2,1,512]", False), ("yarn", False)],
)
def test_workers_of_a_local_master_are_on_this_machine(master: str, is_local: bool) -> None:
    assert spark_module.is_local_master(master) is is_local


def test_python_of_the_executors_is_the_chosen_one_else_that_of_the_user_else_this_one() -> None:
    choose = spark_module._executor_python
    environ = {"PYSPARK_PYTHON": "/user/python"}
    assert choose(environ, "/flag/python", {"spark.pyspark.python": "/conf/python"}) == "/conf/python"
    assert choose(environ, "/flag/python", {}) == "/flag/python"
    assert choose(environ, None, {}) == "/user/python"
    assert choose({}, None, {}) == sys.executable


def test_settings_of_spark_come_from_the_file_and_options_override_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(
        '[pipeline]\nspark_conf = """\n# ours\nspark.cores.max=4\nspark.executor.extraJavaOptions=-Da=b -Dc=d\n"""\n'
        'executor_python = "/opt/python"\n'
    )
    options = PipelineOptions(spark_conf=("spark.cores.max=8",))
    assert options.spark_settings() == {"spark.cores.max": "8", "spark.executor.extraJavaOptions": "-Da=b -Dc=d"}
    assert options.settings().optional_text("pipeline.executor_python") == "/opt/python"
    for wrong in ("spark.cores.max", "cores=3"):
        with pytest.raises(PosthouseError) as refused:
            PipelineOptions(spark_conf=(wrong,)).spark_settings()
        assert refused.value.code == "usage"


def test_settings_that_a_user_gives_reach_the_session(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.defaultJavaOptions") == QUICK_START


def lack_a_library(_task: int) -> None:
    raise ModuleNotFoundError("No module named 'adbc_driver_sqlite'")


def test_workers_that_lack_a_library_are_told_with_what_they_lack(spark: SparkSession) -> None:
    with pytest.raises(PosthouseError) as failed:
        spark_module.run_in_workers(spark, lack_a_library, [1])
    assert (failed.value.code, failed.value.fields["reason"]) == (
        "workers_failed",
        "ModuleNotFoundError: No module named 'adbc_driver_sqlite'",
    )
    assert "--executor-python" in failed.value.hint


@pytest.mark.parametrize(("code", "reason"), [(52, "its heap was full"), (3, "its exit code is 3")])
def test_task_that_failed_because_java_ended_says_how_it_ended(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    ended.wait(60)
    monkeypatch.setattr(SparkContext._gateway, "proc", ended)
    with pytest.raises(PosthouseError) as failed:
        spark_module.run_in_workers(spark, lack_a_library, [1])
    assert (failed.value.code, failed.value.fields["reason"]) == ("spark_stopped", reason)


def test_python_that_does_not_exist_is_the_reason_that_people_see() -> None:
    text = """Job aborted due to stage failure: java.io.IOException: Cannot run program "/nope/python": error=2
    at org.apache.spark.rdd.RDD.iterator(RDD.scala:338)
Caused by: java.io.IOException: error=2, No such file or directory
"""
    assert spark_module.worker_reason(text) == 'Cannot run program "/nope/python"'
