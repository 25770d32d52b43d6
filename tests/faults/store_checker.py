"""Whether a store kept what its processes answered: everything there, nothing twice, seq without gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from posthouse.journal.read import read_after
from posthouse.journal.verify import verify_store
from posthouse.sqlite.connection import open_reader
from tests.faults.audited import audit_findings


def findings(path: Path, answered: Iterable[str]) -> list[str]:
    """Return what is wrong with the store at `path`, given the lines its processes told."""
    stored = _stored(path)
    return [*verify_store(path), *_twice(stored), *_lost(stored, answered), *audit_findings(path)]


def _stored(path: Path) -> list[tuple[str, int]]:
    db = open_reader(path)
    try:
        return [(record.ref or "", record.seq) for record in read_after(db, 0, 10**9)]
    finally:
        db.close()


def _twice(stored: list[tuple[str, int]]) -> Iterator[str]:
    for ref, count in Counter(ref for ref, _ in stored).items():
        if count > 1:
            yield f"{ref} is there {count} times"


def _lost(stored: list[tuple[str, int]], answered: Iterable[str]) -> Iterator[str]:
    seqs = dict(stored)
    for line in answered:
        ref, seq = line.split()
        if ref not in seqs:
            yield f"{ref} was answered and is lost"
        elif int(seq) and seqs[ref] != int(seq):
            yield f"{ref} was answered as {seq} and is {seqs[ref]}"
