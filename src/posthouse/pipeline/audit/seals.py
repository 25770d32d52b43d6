"""Merkle roots computed again: those that bronze commits carry (seals) and those that were published as signed events.

Leaves tell which block of 4,096 seqs was altered. Every sealed row must be there, and every row must be sealed. The
relay and its readers hold the published roots, so rewriting rows together with their seals does not get past them. A
published root counts for the rows of its range however the lake has cut them since; if the range is not complete any
more it says nothing. Contents of events may go, so roots of events are compared only with the seal of the same
range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.model.kinds import LAKE_ROOT
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import ALL
from posthouse.pipeline.connector.feeds import JOURNAL
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, NOTE, Seal, blocks, leaf, root
from posthouse.pipeline.tables.bronze import COPIES

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
            yield _seal_finding(code, feed, seal, seal.after, "its leaves do not lead to its root")
        rows = 0
        for number, sealed in enumerate(seal.leaves):
            after = seal.after + number * BLOCK_ROWS
            count, digest = found.pop((seal.epoch, after), (0, leaf(b"").hex()))
            rows += count
            if digest != sealed:
                last = min(after + BLOCK_ROWS, seal.to)
                yield _seal_finding(
                    code, feed, seal, after, f"{count} rows in {after + 1}..{last} are not those that were sealed"
                )
        if rows != seal.rows and code == "lake_altered":
            yield _seal_finding(
                "lake_lacks_rows", feed, seal, seal.after, f"{rows} rows are there, {seal.rows} were sealed"
            )
    for (epoch, after), (rows, _digest) in sorted(found.items()):
        detail = f"{rows} rows after {after} that no commit has sealed"
        yield Finding(code, "lake", epoch, feed, after + 1, detail)


def _seal_finding(code: str, feed: str, seal: Seal, after: int, detail: str) -> Finding:
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
    from posthouse.pipeline.lake.merkle import canonical_lines

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


_Range = tuple[str, str, int, int]


class PublishedRoot(msgspec.Struct):
    """A seal as it is published."""

    epoch: str
    feed: str
    after: int
    to: int
    root: str


class RootEvent(NamedTuple):
    """A published seal and the event that tells of it."""

    told: PublishedRoot
    id: str
    seq: int

    @property
    def range(self) -> _Range:
        """What it is the root of."""
        return self.told.epoch, self.told.feed, self.told.after, self.told.to


def read_published(events: DataFrame) -> list[RootEvent]:
    """Return the roots that events tell of, as far as their content is still there."""
    from pyspark.sql import functions as f

    content = f.get_json_object("event", "$.content")
    rows = events.where((f.col("kind") == LAKE_ROOT) & f.col("event").isNotNull()).select("id", "seq", content)
    found = []
    for id_, seq, text in rows.collect():
        try:
            found.append(RootEvent(msgspec.json.decode(text or "", type=PublishedRoot), id_, seq))
        except msgspec.MsgspecError:
            continue  # somebody else's event of this kind
    return sorted(found, key=lambda each: each.seq)


def check_sealed(published: Iterable[RootEvent], seals: Iterable[Seal]) -> tuple[list[Finding], list[RootEvent]]:
    """Compare published roots with the seals of the same ranges; return what is wrong, and roots without a seal."""
    sealed = {(seal.epoch, seal.feed, seal.after, seal.to): seal.root for seal in seals}
    findings, others = [], []
    for each in published:
        now = sealed.get(each.range)
        if now is None:
            others.append(each)
        elif now != each.told.root:
            findings.append(_root_finding("lake_altered", each, f"its commit says {now}"))
    return findings, others


def check_rows(
    published: Iterable[RootEvent], rows: DataFrame, held: Iterable[tuple[str, int, int]], code: str
) -> Iterator[Finding]:
    """Compute published roots of the journal again from rows of (epoch, after, to] that are held."""
    ranges = sorted(set(held))
    judged = [each for each in published if each.told.feed == JOURNAL.name and _is_held(each.told, ranges)]
    for layer in _layers(judged):
        seals = [Seal(each.told.epoch, JOURNAL.name, each.told.after, each.told.to, 0, "", ()) for each in layer]
        made = leaves_of_rows(rows, seals, JOURNAL.columns).where("after >= 0").collect()
        leaves = {(row[0], row[1]): row[3] for row in made}
        for each in layer:
            now = _computed_root(each.told, leaves)
            if now != each.told.root:
                yield _root_finding(code, each, f"its rows lead to {now}")


def _is_held(told: PublishedRoot, ranges: Sequence[tuple[str, int, int]]) -> bool:
    reached = told.after
    for epoch, after, to in ranges:
        if epoch == told.epoch and after <= reached:
            reached = max(reached, to)
    return reached >= told.to > told.after >= 0


def _layers(published: Iterable[RootEvent]) -> list[list[RootEvent]]:
    """Return roots in groups whose ranges do not overlap: several lakes may have told of one store."""
    layers: list[list[RootEvent]] = []
    for each in sorted(published, key=lambda one: (one.told.epoch, one.told.after)):
        for layer in layers:
            last = layer[-1].told
            if last.epoch != each.told.epoch or last.to <= each.told.after:
                layer.append(each)
                break
        else:
            layers.append([each])
    return layers


def _computed_root(told: PublishedRoot, leaves: dict[tuple[str, int], str]) -> str:
    empty = leaf(b"").hex()
    found = [leaves.get((told.epoch, block.after), empty) for block in blocks(told.after, told.to)]
    return root([bytes.fromhex(each) for each in found]).hex()


def _root_finding(code: str, each: RootEvent, now: str) -> Finding:
    told = each.told
    detail = f"{told.feed} {told.after + 1}..{told.to} was published as {told.root}, {now}"
    return Finding(code, "lake", told.epoch, each.id, each.seq, detail)
