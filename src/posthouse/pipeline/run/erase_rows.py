"""Erase content from bronze: verify the blocks, sign a record of the erased rows, rewrite the files.

Two things cause an erasure: `content.erased` records of the stores, which a run applies after it has copied them, and
`posthouse pipeline erase`. Rows stay, with every column but their content. Derived tables and replaced files still hold
the content: the run derives the tables again and then purges every file that the newest commits do not name. Each
bronze table stores the number of the last erasure applied to its files, and bronze_erasures the number of the last
erasure whose files were purged, so any run on any host completes the work of a killed run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from posthouse.journal.digest import content_digest
from posthouse.journal.erase import ErasureRequest
from posthouse.journal.records import CONTENT_TYPES
from posthouse.keys import NodeKey
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.event import LAKE_ROOT
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_erasures import (
    ErasedRows,
    Erasure,
    ErasureTable,
    RequestedErasure,
    content_column,
    emptied_texts,
    erased_rows,
    erased_seqs,
)
from posthouse.pipeline.lake.data_file import DataFile, read_groups, write_groups
from posthouse.pipeline.lake.delta import Commit, purge, purge_log
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter, arrow_schema
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, VERSION, Seal, block_after, leaf, row_digests
from posthouse.pipeline.lake.storage import SCRATCH
from posthouse.pipeline.run.copy_feeds import OnStep, RunStep
from posthouse.pipeline.run.position import ERASURES, Versions
from posthouse.pipeline.tables.bronze import COPIES, erasures_id

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_TABLES = {feed.name: table for table, feed in COPIES.items()}


LoadKey = Callable[[], NodeKey]


def no_key() -> NodeKey:
    """Raise key_file_missing, for a run that has to sign an erasure and has no key."""
    raise error("key_file_missing", path="of this run")


@dataclass(frozen=True, slots=True)
class Target:
    """A row whose content has to be erased."""

    epoch: str
    seq: int
    reason: str
    #: Digest of the event as the store knew it; None: the store did not have the content.
    content: str | None = None


class Eraser:
    """Erase rows of one lake; the caller holds the lake's lock."""

    def __init__(self, lake: Lake, load_key: LoadKey, clock: Clock, on_step: OnStep) -> None:
        self._lake = lake
        self._load_key = load_key
        self._clock = clock
        self._on_step = on_step
        self._erasures = ErasureTable(lake.storage)

    def erase(self, request: ErasureRequest | None) -> None:
        """Erase the rows that the stores have erased since the last run, and those that a request selects."""
        self._erasures.create()
        self._record_requests_of_stores()
        self._empty_recorded()  # includes what a killed run has recorded
        if request is None:
            return
        found = {table: _selected(self._lake, table, request) for table in COPIES}
        targets = {table: [Target(*each, request.reason) for each in rows] for table, rows in found.items() if rows}
        if targets:
            self._record(targets, {})
            self._empty_recorded()

    def purge(self) -> None:
        """Delete files that the newest commit of their table does not name, if rows were erased since the last purge.

        The caller must have derived every table again.
        """
        from posthouse.pipeline.tables.catalog import BY_NAME

        newest = self._erasures.newest_number()
        if newest == self._erasures.purged_number():
            return
        for name in self._lake.names():
            if removed := purge(self._lake.delta(name)):
                self._on_step(RunStep("purged", name, 0, {"files": removed}))
            if name in BY_NAME:  # logs of bronze hold no content, and the audit compares the seals with them
                purge_log(self._lake.delta(name))
        for name in self._lake.storage.child_names():
            if name.startswith(SCRATCH):  # left behind by an audit that was killed
                self._lake.storage.child(name).delete_all()
        self._erasures.note_purged(newest)

    def _record_requests_of_stores(self) -> None:
        targets: dict[str, list[Target]] = {}
        applied: dict[str, int] = {}
        journal = self._lake.delta("bronze_journal")
        for epoch in (each.epoch for each in self._lake.epochs()):
            copied = journal.app_version(erasures_id(epoch))
            done = self._erasures.delta.app_version(erasures_id(epoch)) or 0
            if copied is not None and copied > done:
                applied[erasures_id(epoch)] = copied
                for table, found in self._requested(epoch, done, copied):
                    targets.setdefault(table, []).extend(found)
        if applied:
            self._record(targets, applied)

    def _requested(self, epoch: str, after: int, to: int) -> Iterable[tuple[str, list[Target]]]:
        import pyarrow.compute as pc

        choice = RowFilter(epoch, after, to, where=pc.field("type") == "content.erased")
        for row in BronzeScan(self._lake, "bronze_journal").read(choice, ("ref", "body")).to_pylist():
            body = msgspec.json.decode(row["body"], type=RequestedErasure)
            pairs = zip(body.seqs, body.digests, strict=True)
            yield _TABLES[row["ref"]], [Target(epoch, seq, body.reason, digest) for seq, digest in pairs]

    def _record(self, targets: Mapping[str, Sequence[Target]], applied: Mapping[str, int]) -> None:
        """Verify the blocks that hold the targets, and store a signed record for each."""
        key = self._load_key()
        known = self._erasures.read()
        erasures: list[Erasure] = []
        for table, wanted in targets.items():
            blocks = _Blocks(self._lake, table, erased_rows(known, COPIES[table].name))
            erasures += blocks.erasures(wanted, self._clock.wall_ns())
        self._erasures.add(erasures, key, applied)

    def _empty_recorded(self) -> None:
        """Empty the rows of bronze that the records name, unless a run has done so already."""
        newest = self._erasures.newest_number()
        for table, feed in COPIES.items():
            done = self._lake.delta(table).app_version(ERASURES) or 0
            if done < newest and self._lake.delta(table).exists:
                records = [each for each in self._erasures.read(done) if each.erasure.feed == feed.name]
                if rows := _rewrite(self._lake, table, erased_seqs(records), {ERASURES: newest}):
                    self._on_step(RunStep("erased", table, rows, {}))


def count_rows(lake: Lake, request: ErasureRequest) -> dict[str, int]:
    """Return how many rows of each bronze table a request selects."""
    return {table: len(_selected(lake, table, request)) for table in COPIES}


def _selected(lake: Lake, table: str, request: ErasureRequest) -> list[tuple[str, int]]:
    """Return epoch and seq of the rows with content that a request selects."""
    choice = RowFilter(where=_condition(table, request))
    columns = ("epoch", "seq", "type", "body") if table == "bronze_journal" else ("epoch", "seq", "event")
    found: list[tuple[str, int]] = []
    for rows in BronzeScan(lake, table).batches(choice, columns):
        epochs, seqs = rows.column("epoch").to_pylist(), rows.column("seq").to_pylist()
        texts, emptied = rows.column(content_column(rows)).to_pylist(), emptied_texts(rows, set(seqs))
        found += [each[:2] for each in zip(epochs, seqs, texts, emptied, strict=True) if each[2] != each[3]]
    return found


def _condition(table: str, request: ErasureRequest) -> pc.Expression:
    import pyarrow.compute as pc

    is_journal = table == "bronze_journal"
    names = {"node": "actor", "id": "ref"} if is_journal else {"node": "pubkey", "id": "id"}
    # Published roots hold nothing that people wrote, and the audit needs them.
    found = pc.field("type").isin(list(CONTENT_TYPES)) if is_journal else pc.field("kind") != LAKE_ROOT
    for name, value in ((names["node"], request.node), ("mesh", request.mesh), (names["id"], request.id)):
        if value is not None:
            found &= pc.field(name) == value
    return found if request.before_ns is None else found & (pc.field("at_ns") < request.before_ns)


class _Blocks:
    """The blocks of a bronze table; each is verified before rows in it are erased."""

    def __init__(self, lake: Lake, table: str, known: ErasedRows) -> None:
        self._scan = BronzeScan(lake, table)
        self._table = table
        self._feed = COPIES[table]
        self._known = known
        self._seals: dict[str, list[Seal]] = {}
        for seal in sorted((commit.seal for commit in lake.sealed_commits(table)), key=lambda each: each.after):
            self._seals.setdefault(seal.epoch, []).append(seal)

    def erasures(self, targets: Sequence[Target], at_ns: int) -> list[Erasure]:
        """Return a record for each block that holds a target."""
        blocks: dict[tuple[str, int], list[Target]] = {}
        seals: dict[tuple[str, int], Seal] = {}
        for target in targets:
            seal = self._seal_of(target)
            if seal is not None:
                key = target.epoch, block_after(seal.after, target.seq)
                seals[key] = seal
                blocks.setdefault(key, []).append(target)
        made = [self._erasure(seals[key], key[1], wanted, at_ns) for key, wanted in sorted(blocks.items())]
        return [each for each in made if each.seqs]

    def _seal_of(self, target: Target) -> Seal | None:
        """Return the seal over a row; None if the store had pruned the row before a run could copy it."""
        seals = self._seals.get(target.epoch, [])
        index = bisect_left(seals, target.seq, key=lambda each: each.after) - 1
        return seals[index] if index >= 0 and target.seq <= seals[index].to else None

    def _erasure(self, seal: Seal, after: int, targets: Sequence[Target], at_ns: int) -> Erasure:
        to = min(after + BLOCK_ROWS, seal.to)
        rows = self._scan.read(RowFilter(seal.epoch, after, to), self._feed.columns).sort_by("seq")
        kept = self._known.kept(seal.epoch, rows)
        old_leaf = self._known.leaf(seal, after)
        if leaf(rows, self._known.version(seal, after), kept).hex() != old_leaf:
            reason = f"the rows {after + 1}..{to} differ from their seal; `posthouse pipeline audit` shows more"
            raise error("lake_damaged", table=self._table, reason=reason)
        erased = _digests(rows, {target.seq: target.content for target in targets}, kept)
        return Erasure(
            feed=self._feed.name,
            epoch=seal.epoch,
            after=after,
            to=to,
            old_leaf=old_leaf,
            new_leaf=leaf(rows, VERSION, kept).hex(),
            seqs=tuple(each.seq for each in erased),
            digests=tuple(each.digest for each in erased),
            contents=tuple(each.content for each in erased),
            reason="; ".join(sorted({target.reason for target in targets})),
            at_ns=at_ns,
        )


class _Digests(NamedTuple):
    """The digests of one row in an erasure record."""

    seq: int
    digest: str | None
    content: str | None


def _digests(rows: pa.Table, wanted: Mapping[int, str | None], kept: Mapping[int, bytes]) -> list[_Digests]:
    """Return the digests to keep of wanted rows that were not erased before; a row without content is not hashed."""
    column = content_column(rows)
    columns = [rows.column("seq").to_pylist(), rows.column(column).to_pylist(), emptied_texts(rows, wanted)]
    found: list[_Digests] = []
    for digest, seq, text, emptied in zip(row_digests(rows), *columns, strict=True):
        if seq not in wanted or seq in kept:
            continue
        if text == emptied:
            found.append(_Digests(seq, None, wanted[seq]))
        else:
            content = content_digest(text.encode()).hex() if column == "event" else None
            found.append(_Digests(seq, digest.hex(), content))
    return found


def _rewrite(lake: Lake, table: str, seqs: Mapping[str, set[int]], position: Versions) -> int:
    """Write the files that hold these rows again, without the content of the rows; return the number of rows.

    The commit stores `position`.
    """
    delta, schema = lake.delta(table), arrow_schema(table)
    ranges = [RowFilter(epoch, min(found) - 1, max(found)) for epoch, found in seqs.items()]
    added: list[DataFile] = []
    removed: list[str] = []
    changed = 0
    for file in delta.files():
        if not any(each.may_match_in(file) for each in ranges):
            continue
        groups = [_emptied(rows, seqs) for rows in read_groups(delta.storage, file)]
        if count := sum(erased for _rows, erased in groups):
            added.append(write_groups(delta.storage, schema, (rows for rows, _erased in groups)))
            removed.append(file.path)
            changed += count
    delta.commit(Commit(added, removed, position, is_rewrite=not removed), schema)
    return changed


def _emptied(rows: pa.Table, seqs: Mapping[str, set[int]]) -> tuple[pa.Table, int]:
    """Return rows without the content at the given seqs, and the number of rows that had content."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = content_column(rows)
    index = rows.column_names.index(column)
    parts = []
    changed = 0
    for epoch in rows.column("epoch").unique().to_pylist():
        part = rows.filter(pc.equal(rows.column("epoch"), epoch))
        texts = emptied_texts(part, seqs.get(epoch, ()))
        changed += sum(before != now for before, now in zip(part.column(column).to_pylist(), texts, strict=True))
        parts.append(part.set_column(index, rows.schema.field(index), pa.array(texts, pa.string())))
    return (pa.concat_tables(parts) if parts else rows), changed
