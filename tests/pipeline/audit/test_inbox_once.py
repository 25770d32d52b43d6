"""The rule of the inbox on records alone: which rows were received, and which were seen."""

from __future__ import annotations

from posthouse.pipeline.audit.rule import Entry
from posthouse.pipeline.audit.rules.inbox_once import ROWS

ROW = "01JQ8Z5N0000000000000000AB"


def seen(*ids: str) -> Entry:
    return Entry("inbox", 2, 2, "inbox.seen", "main", "", ids[-1], {"ids": list(ids)})


def test_a_row_that_is_seen_is_a_fact_about_that_row() -> None:
    assert list(ROWS.scatter(seen(ROW))) == [(ROW, "seen")]


def test_a_message_id_in_a_record_of_an_older_daemon_is_no_unknown_row() -> None:
    assert list(ROWS.scatter(seen("f" * 64, ROW))) == [(ROW, "seen")]
