"""`pipeline run` as people start it: over a relay, again and again, until it is asked to end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.pipeline.lake import Lake
from tests.faults.child import Child
from tests.pipeline.quick_start import quick_environment
from tests.pipeline.relay import Post, post_office
from tests.pipeline.run.lakes import check_private, check_seals

_PATIENCE_S = 240  # Spark on a loaded machine takes its time
_NOTES = 10


async def publish(post: Post, count: int) -> None:
    async with post.client(post.key) as client:
        await client.publish_many([client.sign(f"note {number}", kind=1) for number in range(count)])


def reports(child: Child) -> Iterator[dict[str, Any]]:
    """Yield what the child reports at the end of every run."""
    reported = 0
    while True:
        reported += 1
        value = json.loads(child.wait_lines(reported, _PATIENCE_S)[reported - 1])
        if "versions" in value:
            yield value


@pytest.mark.slow
@pytest.mark.xdist_group("spark-programs")
def test_runs_over_a_relay_follow_it_until_they_are_asked_to_end(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with post_office(tmp_path) as post:
        asyncio.run(publish(post, _NOTES))
        flags = ("--source", post.relay.url, "--lake", lake.path, "--key-file", post.home / "sender.json")
        again = ("--master", "local[2]", "--every", "1s", "--json")
        env = {"POSTHOUSE_HOME": str(tmp_path / "driver")} | quick_environment()
        with Child("posthouse.cli.main", "pipeline", "run", *flags, *again, env=env) as child:
            runs = reports(child)
            assert next(runs)["published"] == 2
            asyncio.run(publish(post, _NOTES))
            while _count(lake, "bronze_events", "note") < 2 * _NOTES:
                next(runs)
            child.signal(signal.SIGTERM)
            assert (child.wait(_PATIENCE_S), child.errors) == (0, "")
    assert check_seals(lake) >= 2
    check_private(lake.path)


def _count(lake: Lake, table: str, words: str) -> int:
    """Return in how many rows of bronze a content begins with these words."""
    import pyarrow.parquet as pq

    delta = lake.delta(table)
    rows = [row for file in delta.files() for row in pq.ParquetFile(delta.path / file.path).read().to_pylist()]
    return sum(json.loads(row["event"])["content"].startswith(words) for row in rows)
