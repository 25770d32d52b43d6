"""Erasing from a real lake and its stores: the text is gone from every file, and the audit still proves the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from posthouse.journal.erase import ErasureRequest, erase_records
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.archive_history import ArchivedHistory
from posthouse.pipeline.audit.audit import audit
from posthouse.pipeline.audit.seals import audit_lake
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.epochs import segments_of
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_erasures import ErasureTable
from posthouse.pipeline.run.copy_feeds import RunStep, ignore_step
from posthouse.pipeline.run.erase_rows import Eraser, count_rows
from posthouse.pipeline.run.lake_run import bring_up_to_date
from tests.pipeline.audit.forging import rewrite, seal_again

pytestmark = pytest.mark.xdist_group("spark")
KEY = NodeKey(b"e" * 32)


@dataclass
class Erased:
    """A lake from which the most active authors were erased: of a relay at the lake alone, of a bus at its store."""

    lake: Lake
    stores: list[Path]
    author: str
    subject: str
    steps: list[RunStep]
    #: what the authors wrote
    texts: set[str]
    rows_before: dict[str, int]
    contents_before: str | None

    def run(self, spark: SparkSession, request: ErasureRequest | None = None) -> list[RunStep]:
        steps: list[RunStep] = []
        bring_up_to_date(
            spark,
            self.lake,
            [Access(str(path)) for path in self.stores],
            clock=FakeClock(),
            on_step=steps.append,
            load_key=lambda: KEY,
            erasure=request,
        )
        return steps


@pytest.fixture(scope="module")
def erased(spark: SparkSession, stores: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Erased:
    folder = tmp_path_factory.mktemp("erasure")
    copies = []
    for path in stores[:2]:
        copies.append(folder / path.name)
        shutil.copy(path, copies[-1])
    made = Erased(Lake(folder / "lake"), copies, "", "", [], set(), {}, "")
    made.run(spark)
    seal_again(made.lake, "bronze_events", version=1)  # as a lake of an older posthouse has them
    made.author, written, others = busiest(made.lake, "bronze_events", "pubkey", "event")
    made.subject, published, more = busiest(made.lake, "bronze_journal", "actor", "body")
    by_others = "\n".join((*others, *more))
    made.texts = {text for text in (*written, *published) if text not in by_others}
    made.rows_before = rows(made.lake)
    made.contents_before = contents(made.lake)
    erase_records(copies[1], ErasureRequest(node=made.subject), KEY.node, FakeClock())
    made.steps = made.run(spark, ErasureRequest(node=made.author, reason="erased: request 4711"))
    return made


def busiest(lake: Lake, table: str, author: str, column: str) -> tuple[str, list[str], list[str]]:
    """Return the author of most messages, what it wrote, and what others wrote."""
    found: dict[str, list[str]] = {}
    for row in read(lake, table):
        if row.get("kind") == 1000 or row["type"] == "bus.published":
            found.setdefault(str(row[author]), []).append(content(str(row[column])))
    most = max(found, key=lambda name: len(found[name]))
    return most, found.pop(most), [text for texts in found.values() for text in texts]


def content(text: str) -> str:
    value = json.loads(text)
    return str(value["content"] if "content" in value else msgspec.json.encode(value["envelope"]["payload"]).decode())


def read(lake: Lake, table: str) -> list[dict[str, object]]:
    files = [lake.path / table / file.path for file in lake.delta(table).files()]
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def rows(lake: Lake) -> dict[str, int]:
    """Return the rows of tables in which an erased message stays."""
    names = ("bronze_events", "silver_messages", "silver_deliveries", "silver_conversation_messages")
    return {name: sum(file.rows for file in lake.delta(name).files()) for name in names}


def contents(lake: Lake) -> str | None:
    """Return the digest over events that an archive run sends to a relay."""
    epoch = next(each.epoch for each in lake.epochs() if each.store == "relay")
    history = ArchivedHistory(lake, segments_of(lake.epochs(), epoch))
    return history.read(1, 100_000).archived(epoch).contents


def texts_of_files(lake: Lake) -> Iterator[str]:
    """Yield every value in every file below the lake, whether a commit names the file or not."""
    for path in lake.path.rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            for row in pq.ParquetFile(path).read().to_pylist():
                yield from (str(value) for value in row.values() if isinstance(value, str))


def test_what_the_authors_wrote_is_in_no_file_and_every_row_is_still_there(erased: Erased) -> None:
    assert len(erased.texts) > 5
    everything = "\n".join(texts_of_files(erased.lake))
    assert [text for text in erased.texts if text in everything] == []
    assert rows(erased.lake) == erased.rows_before
    changed = {step.table: step.rows for step in erased.steps if step.step == "erased"}
    assert changed.keys() == {"bronze_events", "bronze_journal"}
    assert min(changed.values()) > 5
    assert any(step.step == "purged" for step in erased.steps)


def test_the_audit_proves_the_other_rows_and_the_stores_and_the_derived_tables(
    spark: SparkSession, erased: Erased
) -> None:
    report = audit(spark, erased.lake, [Access(str(path)) for path in erased.stores], is_derived=True)
    assert report.findings == []
    assert report.derived > 10


def test_a_later_run_has_nothing_left_to_erase(spark: SparkSession, erased: Erased) -> None:
    assert {step.step for step in erased.run(spark, ErasureRequest(node=erased.author))} == {"unchanged"}
    assert count_rows(erased.lake, ErasureRequest(node=erased.author)) == {"bronze_journal": 0, "bronze_events": 0}


def test_the_archive_still_proves_to_a_relay_what_it_holds(erased: Erased) -> None:
    assert contents(erased.lake) == erased.contents_before


def test_the_records_say_what_went_and_who_did_it(erased: Erased) -> None:
    records = ErasureTable(erased.lake.storage).read()
    assert {each.node for each in records} == {KEY.node}
    by_feed = {each.erasure.feed: each.erasure for each in records}
    assert by_feed["events"].reason == "erased: request 4711"
    assert by_feed["events"].old_leaf != by_feed["events"].new_leaf  # sealed anew, because it had version 1
    assert by_feed["journal"].old_leaf == by_feed["journal"].new_leaf
    assert all(each.is_authentic() for each in records)


@pytest.fixture
def copied(erased: Erased, tmp_path: Path) -> Lake:
    """A copy that a test may ruin."""
    shutil.copytree(erased.lake.path, tmp_path / "lake")
    return Lake(tmp_path / "lake")


@pytest.mark.parametrize("table", ["bronze_journal", "bronze_events"])
def test_an_altered_row_beside_erased_ones_is_found(spark: SparkSession, copied: Lake, table: str) -> None:
    rewrite(copied, table, lambda row: row.update(mesh="elsewhere"))
    assert {finding.code for finding in audit_lake(spark, copied)[0]} == {"lake_altered"}


def test_an_erasure_that_no_trusted_node_signed_hides_nothing(spark: SparkSession, copied: Lake) -> None:
    findings, _erased = audit_lake(spark, copied, [NodeKey(b"o" * 32).node])
    assert {finding.code for finding in findings} == {"erasure_untrusted", "lake_altered"}


def test_an_edited_record_of_an_erasure_counts_for_nothing(spark: SparkSession, copied: Lake) -> None:
    rewrite(copied, "bronze_erasures", lambda row: row.update(record=str(row["record"]).replace("4711", "4712")))
    rewrite(copied, "bronze_erasures", lambda row: row.update(node=NodeKey(b"o" * 32).node))
    assert {finding.code for finding in audit_lake(spark, copied)[0]} == {"lake_altered"}


def test_a_block_that_differs_from_its_seal_is_not_sealed_anew(copied: Lake) -> None:
    rewrite(copied, "bronze_events", lambda row: row.update(mesh="elsewhere"))
    with pytest.raises(PosthouseError) as refused:
        Eraser(copied, lambda: KEY, FakeClock(), ignore_step).erase(ErasureRequest(before_ns=2**62))
    assert refused.value.code == "lake_damaged"
