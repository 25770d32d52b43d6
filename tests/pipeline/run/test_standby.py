"""A standby of PostgreSQL as the source of a lake: one that lags is told apart from a store that went back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.model.clock import SystemClock
from posthouse.model.errors import Transient
from posthouse.pipeline.audit.audit import Sources
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import Copier
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.server import check_store_server
from posthouse.relay.store.high_water import MarkFile
from tests.pipeline.run.lakes import check_seals, journal_rows
from tests.postgresql.server import find_installation
from tests.postgresql.standby import Replication, run_replication
from tests.relay.accept.answers import accepted
from tests.relay.authors import Author

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
CLOCK = SystemClock()
ALICE = Author(1, CLOCK)


@pytest.fixture
def pair() -> Iterator[Replication]:
    installation = find_installation()
    if installation is None or not (installation / "bin" / "pg_basebackup").exists():
        pytest.skip("no PostgreSQL with pg_basebackup")
    with run_replication(installation) as running:
        yield running


def publish(url: str, folder: Path, count: int) -> None:
    """Publish events through a relay on a database."""

    async def work() -> None:
        mark = MarkFile(folder / "relay.high-water")
        await asyncio.to_thread(check_store_server, url, folder, mark, is_new=False)
        core = await RelayEngine.start(EngineSettings(folder, Author(99).node, store=url, mark_file=mark), CLOCK)
        try:
            for number in range(count):
                accepted(await core.accept(ALICE.raw(content=f"note {number}")))
        finally:
            await core.close()

    asyncio.run(work())
    (folder / "key.json").touch()


def test_standby_that_lags_behind_the_lake_is_refused_until_it_has_caught_up_and_then_copied_from(
    spark: SparkSession, pair: Replication, tmp_path: Path
) -> None:
    lake, database = Lake(tmp_path / "lake"), "store"
    primary, standby = (Access(server.url(database)) for server in (pair.primary, pair.standby))

    def copy(source: Access) -> int:
        Copier(spark, lake, source, CLOCK, 1000, lambda _step: None).copy()
        return len(journal_rows(spark, lake))

    publish(primary.url, tmp_path, 5)
    pair.hold_standby()
    publish(primary.url, tmp_path, 5)
    copied, versions = copy(primary), lake.versions()
    with pytest.raises(Transient) as behind:
        copy(standby)
    assert (behind.value.code, lake.versions()) == ("source_behind", versions)
    assert f"the lake has its records up to {copied}" in str(behind.value)
    assert list(Sources(spark, [standby]).compare(lake)) == []
    pair.release_standby()
    assert copy(standby) == copied
    publish(primary.url, tmp_path, 5)
    pair.hold_standby()  # after it has everything
    assert copy(standby) >= copied + 5
    assert len(lake.epochs()) == 1 and check_seals(lake) == 2
    assert [list(Sources(spark, [each]).compare(lake)) for each in (primary, standby)] == [[], []]
