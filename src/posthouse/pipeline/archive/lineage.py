"""Which epoch holds which seq of a history: a restored store continues its parent, and the lake keeps each part once.

Pure: epochs in, spans out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from posthouse.pipeline.lake.epochs import ALL_LIVE, Epoch


class Span(NamedTuple):
    """The part of a history that lies under one epoch: the seqs (after, through]."""

    epoch: str
    after: int
    through: int


def spans_of(epochs: Iterable[Epoch], epoch: str) -> list[Span]:
    """Return the spans of the history that `epoch` is the newest part of, oldest first."""
    by_name = {each.epoch: each for each in epochs}
    spans: list[Span] = []
    name: str | None = epoch
    through = ALL_LIVE
    while name is not None and name not in {span.epoch for span in spans}:
        known = by_name.get(name)
        after = 0 if known is None or known.parent is None else min(known.fork_seq, through)
        spans.append(Span(name, after, through))
        name, through = (None if known is None else known.parent), after
    return [span for span in reversed(spans) if span.after < span.through]
