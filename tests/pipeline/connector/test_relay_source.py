"""A relay as a source, over HTTP: the same rows as its file, read with a token; roots go back to it, signed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.client import Client
from posthouse.model.clock import SystemClock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import LAKE_ROOT
from posthouse.pipeline.connector.source_access import Access, access_with_key, read_history
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import Copier
from posthouse.pipeline.run.lake_run import address_of, content_of, publish_roots, with_relay_lock
from posthouse.pipeline.session.spark import run_in_workers
from tests.pipeline.relay import Post, post_office

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def copy(spark: SparkSession, lake: Lake, access: Access) -> None:
    Copier(spark, lake, access, SystemClock(), 1_000, lambda _step: None).copy()


def rows(spark: SparkSession, lake: Lake, table: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in lake.rows(spark, table).collect())


async def publish(post: Post, count: int) -> None:
    async with post.client(post.key) as client:
        for number in range(count):
            await client.publish(f"note {number}", kind=1)


def test_a_relay_gives_the_same_rows_as_its_file_and_takes_the_roots(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path / "driver"))
    with post_office(tmp_path) as post:
        asyncio.run(publish(post, 20))
        far, near = Lake(tmp_path / "far"), Lake(tmp_path / "near")
        access = access_with_key(post.relay.url, post.key)
        assert access.token is not None and access.token not in repr(access)
        copy(spark, far, access)
        copy(spark, near, Access(str(post.relay.data_dir)))
        shared = rows(spark, far, "bronze_journal")
        assert len(shared) >= 20
        assert rows(spark, near, "bronze_journal")[: len(shared)] == shared
        assert len(rows(spark, far, "bronze_events")) == 20
        _check_roots(far, post)
        _check_lock(far, post)


def _check_roots(lake: Lake, post: Post) -> None:

    assert publish_roots(lake, post.client(post.key)) == 2
    assert publish_roots(lake, post.client(post.key)) == 0
    ((_version, seal),) = lake.sealed_commits("bronze_journal")

    async def look() -> str:
        async with post.client(post.key) as client:
            found = await client.address(f"{LAKE_ROOT}:{post.key.node}:{address_of(seal)}")
            return found.event.content

    assert asyncio.run(look()) == content_of(seal)
    assert seal.root in content_of(seal)


def _check_lock(lake: Lake, post: Post) -> None:
    def client() -> Client:
        return post.client(post.key)

    with with_relay_lock(lake, client()):
        with pytest.raises(PosthouseError) as refused, with_relay_lock(lake, client()):
            pass
        assert refused.value.code == "lake_busy"
        assert 0 < refused.value.fields["retry_after_s"] <= 30
        assert f"lasts until {refused.value.fields['until']}" in refused.value.hint
    with with_relay_lock(lake, client()):
        pass


def test_a_relay_that_is_away_or_gets_a_wrong_token_is_told_as_such(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PosthouseError) as away:
        run_in_workers(spark, read_history, [Access("http://127.0.0.1:9", "token")])
    assert away.value.code == "relay_unreachable"
    with post_office(tmp_path) as post, pytest.raises(PosthouseError) as refused:
        run_in_workers(spark, read_history, [Access(post.relay.url, "0" * 43)])
    assert refused.value.code == "token_invalid"
    with pytest.raises(PosthouseError) as none:
        run_in_workers(spark, read_history, [Access("http://127.0.0.1:9")])
    assert none.value.code == "source_invalid"
