"""What each epoch is, and which of its rows a restore has lost.

A restore begins a new epoch that continues its parent up to fork_seq. The lake keeps what the parent wrote above it:
those rows happened, and are labelled. Of all epochs that grew from one root the newest is the living history; its
ancestors live up to where it left them, every other row of the tree is lost. Pure: no files, no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALL_LIVE = 2**63 - 1
ALL_LOST = -1


@dataclass(frozen=True, slots=True)
class Epoch:
    """One history of a store; the columns of bronze_epochs, in order."""

    epoch: str
    parent: str | None
    #: the last seq it shares with its parent
    fork_seq: int
    #: relay, bus, outbox or inbox
    store: str
    url: str
    started_at_ns: int


def live_through(epochs: Iterable[Epoch]) -> dict[str, int]:
    """Return for each epoch the last seq that no restore has lost."""
    by_name = {each.epoch: each for each in epochs}
    newest: dict[str, Epoch] = {}
    for each in by_name.values():
        root = _root(by_name, each)
        if root not in newest or (each.started_at_ns, each.epoch) > (newest[root].started_at_ns, newest[root].epoch):
            newest[root] = each
    live = dict.fromkeys(by_name, ALL_LOST)
    for tip in newest.values():
        live |= _lineage(by_name, tip)
    return live


def roots(epochs: Iterable[Epoch]) -> dict[str, str]:
    """Return for each epoch the one its history began with: what names a store over all its restores."""
    by_name = {each.epoch: each for each in epochs}
    return {name: _root(by_name, each) for name, each in by_name.items()}


def _root(by_name: Mapping[str, Epoch], given: Epoch) -> str:
    seen = {given.epoch}
    while (parent := given.parent) is not None and parent in by_name and parent not in seen:
        given = by_name[parent]
        seen.add(parent)
    return given.parent or given.epoch


def _lineage(by_name: Mapping[str, Epoch], tip: Epoch) -> dict[str, int]:
    live = {tip.epoch: ALL_LIVE}
    shared = tip.fork_seq
    while (parent := tip.parent) is not None and parent in by_name and parent not in live:
        live[parent] = shared
        tip = by_name[parent]
        shared = min(shared, tip.fork_seq)
    return live
