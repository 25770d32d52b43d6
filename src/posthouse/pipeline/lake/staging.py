"""Files that Spark wrote, made ready for a commit: private, durable, described."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.files import fsync_dir, private_dir
from posthouse.pipeline.lake.data_file import DataFile, describe_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_frame(table: Path, rows: DataFrame, partition_by: Sequence[str]) -> list[DataFile]:
    """Write rows into new files of a table and return them, none for no rows.

    Spark writes below a directory of its own; the files move from there to where they stay, so that directories of
    partitions lie right below the table: Spark would not find them deeper when it reads.
    """
    batch = secrets.token_hex(12)
    staging = private_dir(table) / f"staging-{batch}"
    rows.write.partitionBy(*partition_by).option("compression", "zstd").parquet(str(staging))
    moved = [
        _move(table, staging, path, batch) for path in sorted(staging.rglob("*.parquet")) if path.name[0] not in "._"
    ]
    shutil.rmtree(staging)
    for directory in {path.parent for path in moved} | {table}:
        fsync_dir(directory)
    return [describe_file(table, path) for path in moved]


def _move(table: Path, staging: Path, path: Path, batch: str) -> Path:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(fd, 0o600)
        os.fsync(fd)
    finally:
        os.close(fd)
    directory = table / path.parent.relative_to(staging)
    if directory != table:
        private_dir(directory)
    return path.rename(directory / f"{batch}-{path.name.split('-')[1]}.parquet")
