"""The job of the cluster test, started by spark-submit: what must be refused, then a run into S3, in one session.

Executors compute and write the larger ones of its small tables, as they do with millions of rows.
/proc/self/cwd is another directory in every process, so a path below it names files that workers do not share.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from posthouse.cli import spark_submit
from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.journal.cursor import DIRECTORY
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run import derive
from posthouse.pipeline.run.lake_run import bring_up_to_date

_OWN = Path("/proc/self/cwd")
_SMALL_TABLE_ROWS = 60  # more than the messages of the history, fewer than their deliveries and than the facts


def main(store: str, folder: str, s3: str, *flags: str) -> None:
    """Print what was refused, then run the command with `flags` into the lake in S3."""
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
    sys.argv[1:] = ["run", "--lake", s3, *flags]
    spark_submit.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
