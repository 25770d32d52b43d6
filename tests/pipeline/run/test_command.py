"""`pipeline run` and `pipeline erase` as people start them, over a relay: until they have to end, or are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from posthouse.files import private_dir
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.archive_history import Archived, archive
from posthouse.pipeline.audit.audit import audit
from posthouse.pipeline.connector.source_access import access_with_key
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_erasures import ErasureTable
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter
from posthouse.pipeline.run.lake_run import hold_lake, lake_id
from posthouse.pipeline.tables.catalog import TABLES
from tests.faults.campaign import chance, rounds
from tests.faults.child import Child
from tests.pipeline.quick_start import quick_environment
from tests.pipeline.relay import Post, post_office
from tests.pipeline.run.lakes import check_private, check_seals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-programs")]
_PATIENCE_S = 600  # Spark on a loaded machine takes its time
_NOTES = 10
_STEPS = 2 + len(TABLES)  # the minimum of reported steps: two copies, then every table
_LEASE_S = 60  # longer than the lease of a killed run
_LATER_S = 0.6  # a kill comes up to so much later, between two steps


class Place(NamedTuple):
    """A relay that runs, and a lake of it."""

    post: Post
    lake: Lake
    folder: Path

    def command(self, *words: str) -> Child:
        """Start a command over the relay; it copies a few rows at a time."""
        key_file, url = self.post.home / "sender.json", self.post.relay.url
        flags = ("--source", url, "--lake", self.lake.path, "--key-file", key_file, "--master", "local[2]", "--json")
        env = {"POSTHOUSE_HOME": str(self.folder / "driver"), "POSTHOUSE_PIPELINE_BATCH_ROWS": "20"}
        env["TMPDIR"] = str(private_dir(self.folder / "tmp"))
        return Child("posthouse.cli.main", "pipeline", *words, *flags, env=env | quick_environment())

    def publish(self, key: NodeKey, words: str, count: int = _NOTES) -> None:
        """Publish notes, and a message whose conversation has the same words in its name."""

        async def work() -> None:
            async with self.post.client(key) as client:
                await client.publish_many([client.sign(f"{words} {number}", kind=1) for number in range(count)])
                await client.send(self.post.key.node, words, meta={"conversation_id": f"{words} of two"})

        asyncio.run(work())

    def prune(self) -> Archived:
        """Let the relay delete the history that the lake holds; it compares both, erased events among them."""

        async def work() -> Archived:
            async with self.post.client(self.post.key) as client:
                return await archive(client, self.lake, 2**62)

        return asyncio.run(work())

    def contents(self) -> list[str]:
        """Return the content of every event in bronze, and fail if one is there twice."""
        rows = BronzeScan(self.lake, "bronze_events").rows(RowFilter(), ("seq", "event"))
        assert len({row["seq"] for row in rows}) == len(rows)
        return [json.loads(row["event"])["content"] for row in rows if row["event"]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("commands")
    with post_office(folder) as post:
        yield Place(post, Lake(folder / "lake"), folder)


def reports(child: Child) -> Iterator[dict[str, Any]]:
    """Yield what the child reports at the end of every run."""
    reported = 0
    while True:
        reported += 1
        value = json.loads(child.wait_lines(reported, _PATIENCE_S)[reported - 1])
        if "versions" in value:
            yield value


@pytest.mark.campaign
def test_a_first_load_that_is_killed_anywhere_is_completed_by_runs_that_follow_the_relay_until_asked_to_end(
    place: Place, spark: SparkSession
) -> None:
    luck = chance("pipeline first load")
    place.publish(place.post.key, "note")
    firsts = [place._replace(lake=Lake(place.folder / f"first{number}")) for number in range(rounds(0, 11))]
    for each in (*firsts, place):
        _start_and_kill(each, luck, "run")
        if {"bronze_journal", "bronze_events"} <= set(each.lake.names()):
            each.contents()
            check_seals(each.lake)
    for each in firsts:
        assert _complete(each, "run") == (0, "")
        assert (_count(each, "note"), audit(spark, each.lake, is_derived=True).findings) == (_NOTES, [])
        check_private(each.lake.path)
    with place.command("run", "--every", "1s") as child:  # it waits for what the killed run still holds
        runs = reports(child)
        assert next(runs)["published"] >= 2
        place.publish(place.post.key, "note")
        while _count(place, "note") < 2 * _NOTES:
            next(runs)
        child.signal(signal.SIGTERM)
        assert child.wait(_PATIENCE_S) == 0
        assert {json.loads(line)["code"] for line in child.errors.splitlines()} <= {"lake_busy"}
    assert check_seals(place.lake) >= 2
    check_private(place.lake.path)


@pytest.mark.campaign
def test_an_erasure_that_is_killed_anywhere_is_completed_by_the_next_and_nothing_of_it_is_left(
    place: Place, spark: SparkSession
) -> None:
    luck, author = chance("pipeline erase"), place.post.reader
    place.publish(place.post.key, "note")
    words = ("erase", "--node", author.node, "--reason", "request 4711")
    for number in range(rounds(1, 12)):
        place.publish(author, "secret", luck.randrange(_NOTES, 5 * _NOTES))
        if number % 2:
            place.publish(place.post.key, "note")
        _wait_until_free(place)  # of the lease that the killed one left: with it the next ends at once, lake_busy
        _start_and_kill(place, luck, *(("run",) if number % 2 else words))
        place.contents()
    place.publish(author, "secret")
    assert _complete(place, *words) == (0, "")
    assert _count(place, "note") >= _NOTES
    left = [path for path in _files_with(place.folder, "secret") if path.parent != place.post.relay.data_dir]
    assert left == [], "only the relay overwrites its own files, when it needs the space"
    assert {each.erasure.reason for each in ErasureTable(place.lake.storage).read()} == {"admin: erased: request 4711"}
    found = audit(spark, place.lake, [access_with_key(place.post.relay.url, place.post.key)], is_derived=True)
    assert (found.findings, found.derived) == ([], len(TABLES))
    assert place.prune().pruned > 3 * _NOTES


def _start_and_kill(place: Place, luck: Random, *words: str) -> None:
    """Run a command until some steps are reported, and kill it a little later."""
    with place.command(*words) as child:
        child.wait_lines(luck.randrange(1, _STEPS), _PATIENCE_S)
        time.sleep(luck.uniform(0, _LATER_S))


def _complete(place: Place, *words: str) -> tuple[int, str]:
    """Run a command to its end and return its exit code and errors."""
    _wait_until_free(place)
    with place.command(*words) as child:
        return child.wait(_PATIENCE_S), child.errors


def _wait_until_free(place: Place) -> None:
    """Return when nothing holds the lake: neither children of a killed command nor its lease at the relay."""

    async def work() -> None:
        resource = f"lake/{lake_id(place.lake)}"
        async with place.post.client(place.post.reader) as client, client.lock(resource, lease_s=30, wait_s=_LEASE_S):
            pass

    asyncio.run(work())
    for _ in range(_PATIENCE_S * 10):
        try:
            with hold_lake(place.lake):
                return
        except PosthouseError as failure:
            assert failure.code == "lake_busy"
            time.sleep(0.1)
    raise TimeoutError(f"a process holds {place.lake.location}")


def _files_with(folder: Path, words: str) -> Iterator[Path]:
    """Yield the files below a directory that hold some words: tables, logs, stores, and what a killed run has left."""
    for path in folder.rglob("*"):
        if path.is_file():
            if path.suffix == ".parquet":
                text = repr(pq.ParquetFile(path).read().to_pylist())
            else:
                text = path.read_bytes().decode(errors="replace")
            if words in text:
                yield path


def _count(place: Place, words: str) -> int:
    """Return in how many rows of bronze a content begins with these words."""
    return sum(content.startswith(words) for content in place.contents())
