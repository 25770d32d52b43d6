"""Planting corruptions into histories: small changes of rows, each as an attacker or a broken disk would make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from posthouse.pipeline.audit import ContentRow, Histories, JournalRow

Body = dict[str, Any]


def find(given: Histories, type_: str, has: Callable[[Body], bool] = lambda _body: True, skip: int = 0) -> JournalRow:
    """Return a record of a type whose body has something."""
    found = [row for row in given.journal if row.type == type_ and has(json.loads(row.body))]
    return found[skip]


def replace_record(given: Histories, row: JournalRow, **columns: Any) -> Histories:
    """Return the history with other columns of one record."""
    changed = row._replace(**columns)
    return given._replace(journal=[changed if each == row else each for each in given.journal])


def replace_body(given: Histories, row: JournalRow, **fields: Any) -> Histories:
    """Return the history with other fields in the body of one record."""
    body = json.loads(row.body) | fields
    return replace_record(given, row, body=json.dumps(body, separators=(",", ":")))


def remove_record(given: Histories, row: JournalRow) -> Histories:
    """Return the history without one record, closing the gap as a careful forger would."""
    kept = [each for each in given.journal if each != row]
    moved = [each._replace(seq=each.seq - 1) if _is_after(each, row) else each for each in kept]
    events = [each._replace(seq=each.seq - 1) if _is_after(each, row) else each for each in given.events]
    return given._replace(journal=moved, events=events)


def replace_event(given: Histories, event: ContentRow, **fields: Any) -> Histories:
    """Return the history with other fields in the JSON of one event."""
    assert event.event is not None
    text = json.dumps(json.loads(event.event) | fields, separators=(",", ":"), ensure_ascii=False)
    return given._replace(events=[each._replace(event=text) if each == event else each for each in given.events])


def content_of(given: Histories, row: JournalRow) -> ContentRow:
    """Return the event of a record."""
    return next(each for each in given.events if (each.epoch, each.seq) == (row.epoch, row.seq))


def _is_after(row: JournalRow | ContentRow, other: JournalRow) -> bool:
    return row.epoch == other.epoch and row.seq > other.seq
