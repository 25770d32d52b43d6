"""Roots that a lake published at a relay reveal a lake rewritten with its seals, and a rewritten store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from posthouse.model.clock import SystemClock
from posthouse.model.event import LAKE_ROOT
from posthouse.pipeline.audit.audit import Sources, _check_lake_roots, audit, lake_frames
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.seals import (
    PublishedRoot,
    RootEvent,
    _layers,
    audit_lake,
    read_published,
    split_publishers,
)
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import Copier, ignore_step
from posthouse.pipeline.run.lake_run import publish_roots
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import Durability, open_writer
from tests.pipeline.audit.forging import rewrite, seal_again
from tests.pipeline.relay import Post, post_office

pytestmark = pytest.mark.xdist_group("spark")


class Sealed(NamedTuple):
    """A store that holds the roots a lake has published of it, and that lake."""

    store: Path
    lake: Lake


def copy(spark: SparkSession, lake: Lake, store: Path) -> None:
    Copier(spark, lake, Access(str(store)), SystemClock(), 4_096, ignore_step).copy()


async def publish(post: Post, text: str) -> None:
    async with post.client(post.key) as client:
        for number in range(10):
            await client.publish(f"{text} {number}", kind=1)


@pytest.fixture(scope="module")
def sealed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sealed]:
    folder = tmp_path_factory.mktemp("published")
    lake = Lake(folder / "lake")
    with pytest.MonkeyPatch.context() as patch, post_office(folder) as post:
        patch.setenv("POSTHOUSE_HOME", str(folder / "driver"))
        store = post.relay.data_dir / "relay.db"
        for text in ("first", "second"):
            asyncio.run(publish(post, text))
            copy(spark, lake, store)
            assert publish_roots(lake, post.client(post.key)) == 2
        copy(spark, lake, store)
    yield Sealed(store, lake)


def refs(findings: Sequence[Finding]) -> set[tuple[str, str]]:
    return {(finding.code, finding.detail.partition(" ")[0]) for finding in findings}


def check_lake(spark: SparkSession, lake: Lake) -> list[Finding]:
    """Return the findings of published roots in a lake."""
    return _check_lake_roots(spark, lake, lake_frames(spark, lake))


def edit_store(sealed: Sealed, target: Path) -> Path:
    """Copy the store and alter the first record, which the first root covers, so that no rule can see it."""
    backup_store(sealed.store, target)  # the relay was killed: its last records may lie in the write-ahead log
    db = open_writer(target, Durability.FULL)
    db.execute("UPDATE journal SET at_ns = at_ns - 1 WHERE seq = 1")
    db.close()
    return target


def test_published_roots_that_hold_are_no_findings(spark: SparkSession, sealed: Sealed) -> None:
    kinds = [row.kind for row in sealed.lake.table(spark, "bronze_events").select("kind").collect()]
    assert kinds.count(LAKE_ROOT) == 4
    assert audit(spark, sealed.lake, [Access(str(sealed.store))]).findings == []


def test_rows_that_were_forged_with_their_seals_do_not_lead_to_the_published_root(
    spark: SparkSession, sealed: Sealed, tmp_path: Path
) -> None:
    shutil.copytree(sealed.lake.path, tmp_path / "lake")
    forged = Lake(tmp_path / "lake")
    rewrite(forged, "bronze_journal", lambda row: row.update(at_ns=int(str(row["at_ns"])) - 1))
    assert seal_again(forged, "bronze_journal") == 1
    assert audit_lake(spark, forged)[0] == []  # the lake agrees with itself
    assert refs(check_lake(spark, forged)) == {("lake_altered", "journal")}


def test_a_lake_made_of_a_forged_store_does_not_lead_to_the_published_root(
    spark: SparkSession, sealed: Sealed, tmp_path: Path
) -> None:
    """The new lake has cut history elsewhere: its seals are not comparable, its rows are."""
    clean, forged = Lake(tmp_path / "clean"), Lake(tmp_path / "forged")
    copy(spark, clean, sealed.store)
    assert check_lake(spark, clean) == []
    store = edit_store(sealed, tmp_path / "relay.db")
    copy(spark, forged, store)
    assert refs(audit(spark, forged, [Access(str(store))]).findings) == {("lake_altered", "journal")}


def test_a_forged_store_does_not_lead_to_the_root_that_it_holds(
    spark: SparkSession, sealed: Sealed, tmp_path: Path
) -> None:
    sources = Sources(spark, [Access(str(sealed.store))])
    assert list(sources.check_published(read_published(sources.frames().events))) == []
    report = audit(spark, None, [Access(str(edit_store(sealed, tmp_path / "relay.db")))])
    assert [(finding.code, finding.store) for finding in report.findings] == [("store_altered", "relay")]


def test_root_of_a_publisher_that_is_not_trusted_is_a_finding_and_proves_nothing(
    spark: SparkSession, sealed: Sealed
) -> None:
    frames = lake_frames(spark, sealed.lake)
    publisher = read_published(frames.events)[0].publisher
    assert publisher.startswith("ed25519:")
    other = f"ed25519:{'0' * 64}"
    found = _check_lake_roots(spark, sealed.lake, frames, [other])
    assert [(finding.code, publisher in finding.detail) for finding in found] == [("root_untrusted", True)]
    assert _check_lake_roots(spark, sealed.lake, frames, [publisher]) == []


def test_node_that_published_roots_needs_no_list_to_distrust_others() -> None:
    mine = RootEvent(PublishedRoot("e", "journal", 0, 9, "aa"), "1", 1, "ed25519:me")
    forged = RootEvent(PublishedRoot("e", "journal", 0, 9, "bb"), "2", 2, "ed25519:other")
    kept, findings = split_publishers([mine, forged], [], "ed25519:me")
    assert kept == [mine]
    assert [(finding.code, finding.ref) for finding in findings] == [("root_untrusted", "2")]
    assert split_publishers([mine, forged], [], "") == ([mine, forged], [])  # this node is none of the publishers
    assert split_publishers([mine, forged], ["ed25519:other"], "ed25519:me") == ([mine, forged], [])


def test_roots_of_several_lakes_are_compared_without_overlap() -> None:
    ranges = [("a", 0, 10), ("a", 0, 20), ("a", 10, 30), ("a", 20, 25), ("b", 5, 9)]
    published = [RootEvent(PublishedRoot(epoch, "journal", after, to, ""), "", 0) for epoch, after, to in ranges]
    layers = _layers(published)
    assert sum(len(layer) for layer in layers) == len(published)
    for layer in layers:
        for one, next_ in pairwise(layer):
            assert one.content.epoch != next_.content.epoch or one.content.to <= next_.content.after
