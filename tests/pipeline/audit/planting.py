"""Small changes of rows, as an attacker or a broken disk would make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from posthouse.keys import NodeKey
from posthouse.model.event import canonical_event_bytes, event_id
from posthouse.pipeline.audit.stores import ContentRow, Histories, JournalRow

Body = dict[str, Any]


def find(given: Histories, type_: str, has: Callable[[Body], bool] = lambda _body: True, skip: int = 0) -> JournalRow:
    """Return a record of a type whose body matches."""
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


def find_event(given: Histories, content: str) -> ContentRow:
    """Return the event with a content."""
    return next(each for each in given.events if each.event and json.loads(each.event)["content"] == content)


def token_of(event: ContentRow) -> int:
    """Return the token an event was fenced with."""
    tags = json.loads(str(event.event))["tags"]
    return int(next(tag[2] for tag in tags if tag[0] == "fence"))


def sign_again(given: Histories, event: ContentRow, key: NodeKey, *tags: tuple[str, ...]) -> Histories:
    """Return the history with other tags on an event: its author signs it again, and the record matches it."""
    fields = json.loads(str(event.event))
    kept = [tag for tag in fields["tags"] if tag[0] not in {each[0] for each in tags}]
    fields["tags"] = [*kept, *(list(tag) for tag in tags)]
    canonical = canonical_event_bytes(
        *(fields[name] for name in ("pubkey", "created_at_ns", "kind", "tags", "content"))
    )
    row = next(each for each in given.journal if (each.epoch, each.seq) == (event.epoch, event.seq))
    fields |= {"id": event_id(canonical), "sig": key.sign(canonical).hex()}
    planted = replace_event(given, event, **fields)
    moved = next(each for each in planted.events if (each.epoch, each.seq) == (event.epoch, event.seq))
    events = [moved._replace(id=fields["id"]) if each == moved else each for each in planted.events]
    planted = replace_body(planted._replace(events=events), row, size=len(canonical))
    changed = next(each for each in planted.journal if (each.epoch, each.seq) == (row.epoch, row.seq))
    return replace_record(planted, changed, ref=fields["id"])


def _is_after(row: JournalRow | ContentRow, other: JournalRow) -> bool:
    return row.epoch == other.epoch and row.seq > other.seq
