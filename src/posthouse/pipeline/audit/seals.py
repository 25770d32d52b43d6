"""Seals: the Merkle roots that bronze commits carry, computed again from the rows that lie in the lake now.

Leaves tell which block of 4,096 seqs was altered. What was sealed must be there, and what is there must be sealed.
The same is done with a store, as far as it still holds what the lake has sealed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.line import ALL
from posthouse.pipeline.lake.bronze import COPIES
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, NOTE, Seal, leaf, root

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from posthouse.pipeline.lake import Lake

LEAVES = "epoch string, after bigint, rows bigint, leaf string"
_Batches = Iterator["pa.RecordBatch"]
_decode = msgspec.json.Decoder(Seal).decode


def read_seals(lake: Lake, table: str) -> list[Seal]:
    """Return the seals of a bronze table, oldest first."""
    return [_decode(commit[NOTE]) for commit in lake.delta(table).history() if NOTE in commit]


def check_seals(
    seals: Sequence[Seal], leaves: Iterable[tuple[str, int, int, str]], code: str, feed: str
) -> Iterator[Finding]:
    """Compare seals with the leaves of the rows that are there: (epoch, after, rows, leaf)."""
    found = {(epoch, after): (rows, digest) for epoch, after, rows, digest in leaves}
    for seal in seals:
        if root([bytes.fromhex(each) for each in seal.leaves]).hex() != seal.root:
            yield _finding(code, feed, seal, seal.after, "its leaves do not lead to its root")
        rows = 0
        for number, sealed in enumerate(seal.leaves):
            after = seal.after + number * BLOCK_ROWS
            count, digest = found.pop((seal.epoch, after), (0, leaf(b"").hex()))
            rows += count
            if digest != sealed:
                last = min(after + BLOCK_ROWS, seal.to)
                yield _finding(
                    code, feed, seal, after, f"{count} rows in {after + 1}..{last} are not those that were sealed"
                )
        if rows != seal.rows and code == "lake_altered":
            yield _finding("lake_lacks_rows", feed, seal, seal.after, f"{rows} rows are there, {seal.rows} were sealed")
    for (epoch, after), (rows, _digest) in sorted(found.items()):
        detail = f"{rows} rows after {after} that no commit has sealed"
        yield Finding(code, "lake", epoch, feed, after + 1, detail)


def _finding(code: str, feed: str, seal: Seal, after: int, detail: str) -> Finding:
    return Finding(code, "lake", seal.epoch, feed, after + 1, f"{feed}: {detail}")


def audit_lake(spark: Any, lake: Lake) -> list[Finding]:
    """Compute every seal of the lake again."""
    findings: list[Finding] = []
    for table, feed in COPIES.items():
        try:
            seals = read_seals(lake, table)
            rows = lake.rows(spark, table, ("epoch", *feed.columns))
            leaves = [tuple(row) for row in leaves_of_rows(rows, seals, feed.columns).collect()]
        except PosthouseError as failure:
            if failure.code != "lake_damaged":
                raise
            findings.append(Finding("lake_altered", "lake", "", table, 0, str(failure)))
            continue
        findings += check_seals(seals, leaves, "lake_altered", feed.name)
    return findings


def leaves_of_rows(rows: DataFrame, seals: Sequence[Seal], columns: Sequence[str]) -> DataFrame:
    """Return the leaf of every block that has rows; rows outside of every seal are one block after -1."""
    from pyspark.sql.types import LongType, StructField, StructType

    names = tuple(columns)

    def place(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.seals import place_batches

        return place_batches(seals, batches)

    def make(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.seals import leaf_batches

        return leaf_batches(names, batches)

    chosen = rows.select("epoch", *names)
    schema = StructType([StructField("after", LongType()), *chosen.schema.fields])
    spread = chosen.mapInArrow(place, schema).repartition("epoch", "after")
    return (
        spread.sortWithinPartitions("epoch", "after", "seq").select("epoch", "after", *names).mapInArrow(make, LEAVES)
    )


def place_batches(seals: Sequence[Seal], batches: _Batches) -> _Batches:
    """Say in front of each row where its block begins."""
    import pyarrow as pa

    by_epoch: dict[str, list[tuple[int, int]]] = {}
    for seal in sorted(seals, key=lambda each: each.after):
        by_epoch.setdefault(seal.epoch, []).append((seal.after, seal.to))
    for batch in batches:
        places = zip(batch.column("epoch").to_pylist(), batch.column("seq").to_pylist(), strict=True)
        after = pa.array([_block(by_epoch.get(epoch, ()), seq) for epoch, seq in places], pa.int64())
        yield pa.RecordBatch.from_arrays([after, *batch.columns], names=["after", *batch.schema.names])


def _block(ranges: Sequence[tuple[int, int]], seq: int) -> int:
    at = bisect_right(ranges, (seq - 1, ALL)) - 1
    if at < 0 or seq > ranges[at][1]:
        return -1
    after = ranges[at][0]
    return after + (seq - after - 1) // BLOCK_ROWS * BLOCK_ROWS


def leaf_batches(columns: tuple[str, ...], batches: _Batches) -> _Batches:
    """Return the leaf of each block of sorted rows."""
    import pyarrow as pa

    made = [(epoch, after, len(table), _digest(table, columns)) for (epoch, after), table in _blocks(batches)]
    if made:
        kinds = (pa.string(), pa.int64(), pa.int64(), pa.string())
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*made, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["epoch", "after", "rows", "leaf"])


def _digest(table: pa.Table, columns: tuple[str, ...]) -> str:
    from posthouse.pipeline.lake.lines import canonical_lines

    return leaf(canonical_lines(table.select(list(columns)))).hex()


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    """Yield sorted rows block by block; a block may lie across batches."""
    import pyarrow as pa

    key: tuple[str, int] | None = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        keys = list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
        begin = 0
        for place in range(len(keys) + 1):
            if place < len(keys) and keys[place] == keys[begin]:
                continue
            if keys[begin] != key:
                if key is not None:
                    yield key, pa.Table.from_batches(parts)
                key, parts = keys[begin], []
            parts.append(batch.slice(begin, place - begin))
            begin = place
    if key is not None:
        yield key, pa.Table.from_batches(parts)
