"""Roots that were published as signed events: the rows they stand for must still lead to them.

The relay and its readers hold these events, so whoever rewrites rows together with their seals, or a store together
with the lake that is made of it, does not get past them. A root counts for the rows of its range, however the lake has
cut them since; where the whole range is not there any more, it says nothing. Contents of events may go, so roots of
events are only compared with the seal of the same range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from posthouse.model.kinds import LAKE_ROOT
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.seals import leaves_of_rows
from posthouse.pipeline.lake.merkle import Seal, blocks, leaf, root
from posthouse.pipeline.source.feeds import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Range = tuple[str, str, int, int]


class Told(msgspec.Struct):
    """A seal as it is published."""

    epoch: str
    feed: str
    after: int
    to: int
    root: str


class Published(NamedTuple):
    """A published seal and the event that tells of it."""

    told: Told
    id: str
    seq: int

    @property
    def range(self) -> _Range:
        """What it is the root of."""
        return self.told.epoch, self.told.feed, self.told.after, self.told.to


def read_published(events: DataFrame) -> list[Published]:
    """Return the roots that events tell of, as far as their content is still there."""
    from pyspark.sql import functions as f

    content = f.get_json_object("event", "$.content")
    rows = events.where((f.col("kind") == LAKE_ROOT) & f.col("event").isNotNull()).select("id", "seq", content)
    found = []
    for id_, seq, text in rows.collect():
        try:
            found.append(Published(msgspec.json.decode(text or "", type=Told), id_, seq))
        except msgspec.MsgspecError:
            continue  # somebody else's event of this kind
    return sorted(found, key=lambda each: each.seq)


def check_sealed(published: Iterable[Published], seals: Iterable[Seal]) -> tuple[list[Finding], list[Published]]:
    """Compare published roots with the seals of the same ranges; return what is wrong, and roots without a seal."""
    sealed = {(seal.epoch, seal.feed, seal.after, seal.to): seal.root for seal in seals}
    findings, others = [], []
    for each in published:
        now = sealed.get(each.range)
        if now is None:
            others.append(each)
        elif now != each.told.root:
            findings.append(_finding("lake_altered", each, f"its commit says {now}"))
    return findings, others


def check_rows(
    published: Iterable[Published], rows: DataFrame, held: Iterable[tuple[str, int, int]], code: str
) -> Iterator[Finding]:
    """Compute published roots of the journal again from rows of (epoch, after, to] that are held."""
    ranges = sorted(set(held))
    judged = [each for each in published if each.told.feed == JOURNAL.name and _is_held(each.told, ranges)]
    for layer in _layers(judged):
        seals = [Seal(each.told.epoch, JOURNAL.name, each.told.after, each.told.to, 0, "", ()) for each in layer]
        made = leaves_of_rows(rows, seals, JOURNAL.columns).where("after >= 0").collect()
        leaves = {(row[0], row[1]): row[3] for row in made}
        for each in layer:
            now = _root(each.told, leaves)
            if now != each.told.root:
                yield _finding(code, each, f"its rows lead to {now}")


def _is_held(told: Told, ranges: Sequence[tuple[str, int, int]]) -> bool:
    reached = told.after
    for epoch, after, to in ranges:
        if epoch == told.epoch and after <= reached:
            reached = max(reached, to)
    return reached >= told.to > told.after >= 0


def _layers(published: Iterable[Published]) -> list[list[Published]]:
    """Return roots in groups whose ranges do not overlap: several lakes may have told of one store."""
    layers: list[list[Published]] = []
    for each in sorted(published, key=lambda one: (one.told.epoch, one.told.after)):
        for layer in layers:
            last = layer[-1].told
            if last.epoch != each.told.epoch or last.to <= each.told.after:
                layer.append(each)
                break
        else:
            layers.append([each])
    return layers


def _root(told: Told, leaves: dict[tuple[str, int], str]) -> str:
    empty = leaf(b"").hex()
    found = [leaves.get((told.epoch, block.after), empty) for block in blocks(told.after, told.to)]
    return root([bytes.fromhex(each) for each in found]).hex()


def _finding(code: str, each: Published, now: str) -> Finding:
    told = each.told
    detail = f"{told.feed} {told.after + 1}..{told.to} was published as {told.root}, {now}"
    return Finding(code, "lake", told.epoch, each.id, each.seq, detail)
