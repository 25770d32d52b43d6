"""The fast way to canonical lines is byte for byte the slow one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.journal.records import Record, canonical_line
from posthouse.pipeline.connector.feeds import EVENTS, JOURNAL
from posthouse.pipeline.lake.merkle import canonical_lines, slow_lines

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_maybe = st.none() | _texts
_seqs = st.integers(1, 2**53 - 1)
_times = st.integers(0, 2**63 - 1)
_records = st.builds(Record, _seqs, _times, _texts, _maybe, _maybe, _maybe, _texts)


@given(st.lists(_records, max_size=5))
@settings(max_examples=200)
def test_lines_of_the_journal_are_the_canonical_ones(records: list[Record]) -> None:
    rows = pa.Table.from_pylist([record._asdict() for record in records], schema=JOURNAL.schema())
    assert canonical_lines(rows) == b"".join(canonical_line(record) for record in records)


@given(st.fixed_dictionaries({name: _maybe for name in EVENTS.columns if name in ("id", "mesh", "event", "recipient")}))
def test_lines_of_any_feed_follow_rfc_8785(values: dict[str, Any]) -> None:
    row = dict.fromkeys(EVENTS.columns) | values | {"seq": 1, "at_ns": 2**60, "created_at_ns": 2**61, "kind": 1000}
    rows = pa.Table.from_pylist([row], schema=EVENTS.schema())
    assert canonical_lines(rows) == slow_lines(rows)
