"""The job of the cluster test, started by spark-submit: what must be refused, a run into S3, an audit of its tables.

The audit is of a copy of the lake that lacks a file of a table. Executors compute, write and compare the larger ones
of the small tables, as they do with millions of rows. /proc/self/cwd is another directory in every process, so a path
below it names files that workers do not share.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from posthouse.cli import spark_submit
from posthouse.cli.exit_codes import run
from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.journal.cursor import DIRECTORY
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import Commit
from posthouse.pipeline.lake.lake import arrow_schema
from posthouse.pipeline.run import derive
from posthouse.pipeline.run.lake_run import bring_up_to_date

_OWN = Path("/proc/self/cwd")
_SMALL_TABLE_ROWS = 60  # more than the messages of the history, fewer than their deliveries and than the facts
PLANTED = "silver_leases"


def main(store: str, folder: str, s3: str, planted: str, *flags: str) -> None:
    """Print what was refused, run the command with `flags` into the lake in S3, and audit a damaged copy of it."""
    derive.SMALL_TABLE_ROWS = _SMALL_TABLE_ROWS
    os.chdir(folder)
    spark = PipelineOptions(lake=s3).session()
    shutil.copy(store, "relay.db")

    def refusal(lake: Lake, source: Path | str) -> str:
        try:
            bring_up_to_date(spark, lake, [Access(str(source))])
        except PosthouseError as failure:
            return failure.code
        return "nothing"

    unshared = Lake(_OWN / "lake")
    found = {
        "source": refusal(Lake(Path(folder) / "shared"), _OWN / "relay.db"),
        "lake": refusal(unshared, store),
        "tables": unshared.names(),
        "told_committed": (unshared.path / DIRECTORY).exists(),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    if code := run(["pipeline", "run", "--lake", s3, *flags]):
        sys.exit(code)
    plant(Lake(s3), Lake(planted))
    sys.argv[1:] = ["audit", "--derived", "--lake", planted, "--json"]
    spark_submit.main()


def plant(lake: Lake, copy: Lake) -> None:
    """Copy a lake, and take a file out of one of its tables."""
    import pyarrow.fs

    places = [each.storage.full_path("") for each in (lake, copy)]
    filesystem = lake.storage.filesystem()
    pyarrow.fs.copy_files(*places, source_filesystem=filesystem, destination_filesystem=filesystem)
    table = copy.delta(PLANTED)
    table.commit(Commit(remove=[table.files()[0].path], is_rewrite=True), arrow_schema(PLANTED))


if __name__ == "__main__":
    main(*sys.argv[1:])
