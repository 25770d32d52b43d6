"""Recompute Merkle roots: those in bronze commits (seals), and those that were published as signed events.

Leaves show which block of 4,096 seqs was altered. Every sealed row must exist, and every row must be sealed. The relay
and its readers hold the published roots, so an attacker who rewrites rows together with their seals is still detected.
A published root applies to the rows of its range, regardless of how the lake has split them since; if the range is no
longer complete, the root is not checked. The content of events may expire, so a root over events is compared only with
the seal of the same range. For an erased row, the digest in a signed erasure record is hashed instead; an erasure
record that no trusted node signed, or that does not continue the leaf of its block, is ignored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.model.event import LAKE_ROOT
from posthouse.model.merkle_tree import root
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import ALL
from posthouse.pipeline.connector.feeds import JOURNAL
from posthouse.pipeline.lake.bronze_erasures import ErasedRows, ErasureTable, SignedErasure
from posthouse.pipeline.lake.bronze_seals import SealTable
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, EMPTY_LEAF, VERSION, Seal, block_after, blocks, leaf
from posthouse.pipeline.tables.bronze import COPIES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from posthouse.pipeline.lake import Lake


NO_ERASURES = ErasedRows()
LEAVES = "epoch string, after bigint, rows bigint, leaf string"
_Batches = Iterator["pa.RecordBatch"]


def check_seals(
    seals: Sequence[Seal],
    leaves: Iterable[tuple[str, int, int, str]],
    code: str,
    feed: str,
    erased: ErasedRows = NO_ERASURES,
) -> Iterator[Finding]:
    """Compare seals with the leaves of existing rows, each (epoch, after, rows, leaf)."""
    found = {(epoch, after): (rows, digest) for epoch, after, rows, digest in leaves}
    for seal in seals:
        if root([bytes.fromhex(each) for each in seal.leaves]).hex() != seal.root:
            yield _seal_finding(code, feed, seal, seal.after, "the leaves of the seal do not hash to its root")
        rows = 0
        for number in range(len(seal.leaves)):
            after = seal.after + number * BLOCK_ROWS
            count, digest = found.pop((seal.epoch, after), (0, EMPTY_LEAF))
            rows += count
            if digest != erased.leaf(seal, after):
                last = min(after + BLOCK_ROWS, seal.to)
                detail = f"the {count} rows in {after + 1}..{last} differ from the sealed rows"
                yield _seal_finding(code, feed, seal, after, detail)
        if rows != seal.rows and code == "lake_altered":
            detail = f"{rows} rows exist, {seal.rows} were sealed"
            yield _seal_finding("lake_lacks_rows", feed, seal, seal.after, detail)
    for (epoch, after), (rows, _digest) in sorted(found.items()):
        detail = f"no commit sealed the {rows} rows after {after}"
        yield Finding(code, "lake", epoch, feed, after + 1, detail)


def _seal_finding(code: str, feed: str, seal: Seal, after: int, detail: str) -> Finding:
    return Finding(code, "lake", seal.epoch, feed, after + 1, f"{feed}: {detail}")


def check_erasures(
    records: Sequence[SignedErasure], seals: Sequence[Seal], feed: str, trusted: Collection[str], own: str = ""
) -> tuple[ErasedRows, list[Finding]]:
    """Return the digests and leaves from the valid erasure records of a feed, and a finding for each ignored record.

    `own` is this node. Without `trusted`, the records of all nodes count, unless this node signed one: then only its
    own do.
    """
    sealed = {(seal.epoch, after): seal for seal in seals for after in range(seal.after, seal.to, BLOCK_ROWS)}
    accepted = {*trusted, own} if trusted or any(each.node == own for each in records) else None
    erased, findings = ErasedRows(), []
    for each in records:
        record = each.erasure
        if record.feed != feed:
            continue
        seal = sealed.get((record.epoch, record.after))
        if accepted is not None and each.node not in accepted:
            fault = "erasure_untrusted", f"{each.node} is not a trusted publisher and erased {len(record.seqs)} rows"
        elif not each.is_authentic():
            fault = "lake_altered", f"the signature of {each.node} on an erasure is invalid"
        elif seal is None or not erased.is_continued_by(record, seal):
            fault = "lake_altered", "an erasure does not continue the seal of its block"
        else:
            erased.add(record)
            continue
        code, detail = fault
        findings.append(Finding(code, "lake", record.epoch, feed, record.after + 1, f"{feed}: {detail}"))
    return erased, findings


def audit_lake(
    spark: Any, lake: Lake, publishers: Collection[str] = (), own_node: str = ""
) -> tuple[list[Finding], dict[str, ErasedRows]]:
    """Recompute every seal of the lake; return the findings, and the valid erasures by feed."""
    findings: list[Finding] = []
    erased: dict[str, ErasedRows] = {}
    records = ErasureTable(lake.storage).read()
    for table, feed in COPIES.items():
        try:
            seals = [commit.seal for commit in lake.sealed_commits(table)]
            erased[feed.name], found = check_erasures(records, seals, feed.name, publishers, own_node)
            findings += found
            rows = lake.rows(spark, table, ("epoch", *feed.columns))
            leaves = [tuple(row) for row in leaves_of_rows(rows, seals, feed.columns, erased[feed.name]).collect()]
        except PosthouseError as failure:
            if failure.code != "lake_damaged":
                raise
            findings.append(Finding("lake_altered", "lake", "", table, 0, str(failure)))
            continue
        findings += check_seals(seals, leaves, "lake_altered", feed.name, erased[feed.name])
        for seal in SealTable(lake.storage).contradictions(table):
            detail = "the seal differs from the one that its commit carries"
            findings.append(_seal_finding("lake_altered", feed.name, seal, seal.after, detail))
    return findings, erased


def leaves_of_rows(
    rows: DataFrame, seals: Sequence[Seal], columns: Sequence[str], erased: ErasedRows = NO_ERASURES
) -> DataFrame:
    """Return the leaf of every block that has rows; rows outside every seal form one block with after = -1."""
    from pyspark.sql.types import LongType, StructField, StructType

    names = tuple(columns)
    old = {
        (seal.epoch, after)
        for seal in seals
        for after in range(seal.after, seal.to, BLOCK_ROWS)
        if erased.version(seal, after) == 1
    }

    def add_block(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.seals import add_block_column

        return add_block_column(seals, batches)

    def hash_blocks(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.seals import leaf_batches

        return leaf_batches(names, batches, old, erased)

    chosen = rows.select("epoch", *names)
    schema = StructType([StructField("after", LongType()), *chosen.schema.fields])
    blocked = chosen.mapInArrow(add_block, schema).repartition("epoch", "after")
    ordered = blocked.sortWithinPartitions("epoch", "after", "seq").select("epoch", "after", *names)
    return ordered.mapInArrow(hash_blocks, LEAVES)


def add_block_column(seals: Sequence[Seal], batches: _Batches) -> _Batches:
    """Add a first column `after`: the seq after which the row's block starts."""
    import pyarrow as pa

    by_epoch: dict[str, list[tuple[int, int]]] = {}
    for seal in sorted(seals, key=lambda each: each.after):
        by_epoch.setdefault(seal.epoch, []).append((seal.after, seal.to))
    for batch in batches:
        positions = zip(batch.column("epoch").to_pylist(), batch.column("seq").to_pylist(), strict=True)
        after = pa.array([_block_start(by_epoch.get(epoch, ()), seq) for epoch, seq in positions], pa.int64())
        yield pa.RecordBatch.from_arrays([after, *batch.columns], names=["after", *batch.schema.names])


def _block_start(ranges: Sequence[tuple[int, int]], seq: int) -> int:
    index = bisect_right(ranges, (seq - 1, ALL)) - 1
    if index < 0 or seq > ranges[index][1]:
        return -1
    return block_after(ranges[index][0], seq)


def leaf_batches(
    columns: tuple[str, ...], batches: _Batches, old: Collection[tuple[str, int]], erased: ErasedRows
) -> _Batches:
    """Yield the leaf of each block of sorted rows; `old` holds the blocks of version 1, by epoch and start."""
    import pyarrow as pa

    leaves = []
    for (epoch, after), table in _blocks(batches):
        rows = table.select(list(columns))
        digest = leaf(rows, 1 if (epoch, after) in old else VERSION, erased.kept(epoch, rows))
        leaves.append((epoch, after, len(table), digest.hex()))
    if leaves:
        kinds = (pa.string(), pa.int64(), pa.int64(), pa.string())
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*leaves, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["epoch", "after", "rows", "leaf"])


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    """Yield sorted rows block by block; a block may span batches."""
    import pyarrow as pa

    key: tuple[str, int] | None = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        keys = list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
        start = 0
        for end in range(len(keys) + 1):
            if end < len(keys) and keys[end] == keys[start]:
                continue
            if keys[start] != key:
                if key is not None:
                    yield key, pa.Table.from_batches(parts)
                key, parts = keys[start], []
            parts.append(batch.slice(start, end - start))
            start = end
    if key is not None:
        yield key, pa.Table.from_batches(parts)


_Range = tuple[str, str, int, int]


class PublishedRoot(msgspec.Struct):
    """The content of a root event: a seal without its leaves."""

    epoch: str
    feed: str
    after: int
    to: int
    root: str
    version: int = 1


class RootEvent(NamedTuple):
    """A published root, with the id, seq and author of its event."""

    content: PublishedRoot
    id: str
    seq: int
    #: Node id.
    publisher: str = ""

    @property
    def range(self) -> _Range:
        """Epoch, feed, after and to of the rows under the root."""
        return self.content.epoch, self.content.feed, self.content.after, self.content.to


def read_published(events: DataFrame) -> list[RootEvent]:
    """Return the published roots among events whose content is still available, in seq order."""
    from pyspark.sql import functions as f

    content = f.get_json_object("event", "$.content")
    rows = events.where((f.col("kind") == LAKE_ROOT) & f.col("event").isNotNull()).select(
        "id", "seq", "pubkey", content
    )
    found = []
    for id_, seq, pubkey, text in rows.collect():
        try:
            found.append(RootEvent(msgspec.json.decode(text or "", type=PublishedRoot), id_, seq, pubkey))
        except msgspec.MsgspecError:
            continue  # another application's event of this kind
    return sorted(found, key=lambda each: each.seq)


def split_publishers(
    published: Sequence[RootEvent], trusted: Collection[str], own: str = ""
) -> tuple[list[RootEvent], list[Finding]]:
    """Return the roots of trusted publishers, and a finding for each other publisher.

    `own` is this node: it is trusted too, and if it has published a root, other publishers are distrusted even without
    a list. Without any trusted publisher all roots count. A root of an unknown publisher proves nothing: its author may
    have invented it to raise a false alarm.
    """
    if not trusted and all(each.publisher != own for each in published):
        return list(published), []
    trusted = {*trusted, own}
    others: dict[str, list[RootEvent]] = {}
    for each in published:
        if each.publisher not in trusted:
            others.setdefault(each.publisher, []).append(each)
    findings = [
        Finding("root_untrusted", "lake", roots[0].content.epoch, roots[0].id, roots[0].seq, _untrusted(node, roots))
        for node, roots in sorted(others.items())
    ]
    return [each for each in published if each.publisher in trusted], findings


def _untrusted(publisher: str, roots: Sequence[RootEvent]) -> str:
    count = f"{len(roots)} roots" if len(roots) > 1 else "a root"
    return f"{publisher} published {count} and is not in pipeline.publishers; this is the first"


def check_sealed(published: Iterable[RootEvent], seals: Iterable[Seal]) -> tuple[list[Finding], list[RootEvent]]:
    """Compare published roots with the seals of the same ranges; return findings, and the roots without a seal."""
    sealed = {(seal.epoch, seal.feed, seal.after, seal.to): seal.root for seal in seals}
    findings, others = [], []
    for each in published:
        now = sealed.get(each.range)
        if now is None:
            others.append(each)
        elif now != each.content.root:
            findings.append(_root_finding("lake_altered", each, f"its commit states {now}"))
    return findings, others


def check_rows(
    published: Iterable[RootEvent],
    rows: DataFrame,
    held: Iterable[tuple[str, int, int]],
    code: str,
    erased: ErasedRows = NO_ERASURES,
) -> Iterator[Finding]:
    """Recompute published roots over the journal from rows; `held` lists the complete ranges (epoch, after, to].

    A root of version 1 cannot be recomputed if one of its rows was erased.
    """
    ranges = sorted(set(held))
    checked = [each for each in published if each.content.feed == JOURNAL.name and _is_held(each.content, ranges)]
    digests = ErasedRows(erased.digests)  # the seals of the lake do not cover ranges of other lakes
    for layer in _layers(each for each in checked if each.content.version > 1 or not _lost_rows(each.content, erased)):
        seals = [
            Seal(each.epoch, JOURNAL.name, each.after, each.to, 0, "", (), each.version)
            for each in (event.content for event in layer)
        ]
        computed = leaves_of_rows(rows, seals, JOURNAL.columns, digests).where("after >= 0").collect()
        leaves = {(row[0], row[1]): row[3] for row in computed}
        for each in layer:
            now = _computed_root(each.content, leaves)
            if now != each.content.root:
                yield _root_finding(code, each, f"its rows hash to {now}")


def _lost_rows(content: PublishedRoot, erased: ErasedRows) -> bool:
    return any(content.after < seq <= content.to for seq in erased.digests.get(content.epoch, ()))


def _is_held(content: PublishedRoot, ranges: Sequence[tuple[str, int, int]]) -> bool:
    covered = content.after
    for epoch, after, to in ranges:
        if epoch == content.epoch and after <= covered:
            covered = max(covered, to)
    return covered >= content.to > content.after >= 0


def _layers(published: Iterable[RootEvent]) -> list[list[RootEvent]]:
    """Group roots so that ranges in a group do not overlap: several lakes may have published roots of one store."""
    layers: list[list[RootEvent]] = []
    for each in sorted(published, key=lambda one: (one.content.epoch, one.content.after)):
        for layer in layers:
            last = layer[-1].content
            if last.epoch != each.content.epoch or last.to <= each.content.after:
                layer.append(each)
                break
        else:
            layers.append([each])
    return layers


def _computed_root(content: PublishedRoot, leaves: dict[tuple[str, int], str]) -> str:
    found = [leaves.get((content.epoch, block.after), EMPTY_LEAF) for block in blocks(content.after, content.to)]
    return root([bytes.fromhex(each) for each in found]).hex()


def _root_finding(code: str, each: RootEvent, now: str) -> Finding:
    epoch, feed, after, to = each.range
    detail = f"{feed} {after + 1}..{to} was published as {each.content.root}, {now}"
    return Finding(code, "lake", epoch, each.id, each.seq, detail)
