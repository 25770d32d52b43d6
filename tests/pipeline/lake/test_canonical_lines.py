"""canonical_lines returns, byte for byte, what a plain RFC 8785 encoder returns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.journal.digest import Record, canonical_line
from posthouse.pipeline.connector.feeds import EVENTS, JOURNAL
from posthouse.pipeline.lake.merkle import canonical_lines

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_maybe = st.none() | _texts
_seqs = st.integers(1, 2**53 - 1)
_times = st.integers(0, 2**63 - 1)
_records = st.builds(Record, _seqs, _times, _texts, _maybe, _maybe, _maybe, _texts)


def plain_lines(rows: pa.Table) -> bytes:
    return b"".join(rfc8785.dumps(_with_text_times(row)) + b"\n" for row in rows.to_pylist())


def _with_text_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if name.endswith("_ns") and value is not None else value for name, value in row.items()}


@given(st.lists(_records, max_size=5))
@settings(max_examples=200)
def test_lines_of_the_journal_are_the_canonical_ones(records: list[Record]) -> None:
    rows = pa.Table.from_pylist([record._asdict() for record in records], schema=JOURNAL.schema())
    assert canonical_lines(rows) == b"".join(canonical_line(record) for record in records)


@given(st.fixed_dictionaries({name: _maybe for name in EVENTS.columns if name in ("id", "mesh", "event", "recipient")}))
def test_lines_of_any_feed_follow_rfc_8785(values: dict[str, Any]) -> None:
    row = dict.fromkeys(EVENTS.columns) | values | {"seq": 1, "at_ns": 2**60, "created_at_ns": 2**61, "kind": 1000}
    rows = pa.Table.from_pylist([row], schema=EVENTS.schema())
    assert canonical_lines(rows) == plain_lines(rows)
