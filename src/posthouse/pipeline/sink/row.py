"""A row on its way to the relay: what a message or an event needs, keyed so that sending it again changes nothing.

Rows are judged where they are read, on the executors, before anything is sent. Needs no key and opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from posthouse.model.errors import error
from posthouse.model.kinds import MESSAGE

NEEDED = ("row_key", "body")
OPTIONAL = ("to", "meta", "reply_to", "priority", "kind", "tags", "created_at_ns")


class SinkRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row; `to` and what follows it are of messages, `tags` and `created_at_ns` of other events."""

    #: names it within its run
    row_key: str
    body: str
    #: #topic, node id or member name
    to: str | None = None
    #: a JSON object
    meta: str | None = None
    reply_to: str | None = None
    priority: str | None = None
    kind: int = MESSAGE
    #: a JSON list of lists of strings
    tags: str | None = None
    created_at_ns: int | None = None

    @property
    def is_message(self) -> bool:
        return self.kind == MESSAGE


def check_columns(names: Iterable[str]) -> None:
    """Refuse rows that lack a column or have one that nobody would look at."""
    found = set(names)
    if missing := [name for name in NEEDED if name not in found]:
        raise error("sink_rows_invalid", reason=f"they lack the column {missing[0]}")
    if unknown := sorted(found - {*NEEDED, *OPTIONAL}):
        raise error("sink_rows_invalid", reason=f"the column {unknown[0]} is not known")


def read_row(values: Mapping[str, Any]) -> SinkRow:
    """Return a row, or raise sink_rows_invalid."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        row = msgspec.convert(given, SinkRow)
    except msgspec.ValidationError as fault:
        raise error("sink_rows_invalid", reason=f"row {given.get('row_key')!r}: {fault}") from fault
    if row.is_message and not row.to:
        raise error("sink_rows_invalid", reason=f"row {row.row_key!r} is a message without `to`")
    if not row.is_message and row.created_at_ns is None:
        raise error("sink_rows_invalid", reason=f"row {row.row_key!r} is an event without created_at_ns")
    return row


def join_rows(rows: Iterable[SinkRow]) -> list[SinkRow]:
    """Return rows once each in the order of their keys; one key with two contents is refused."""
    by_key: dict[str, SinkRow] = {}
    for row in rows:
        if by_key.setdefault(row.row_key, row) != row:
            raise error("sink_rows_invalid", reason=f"two rows have the key {row.row_key!r}")
    return [by_key[key] for key in sorted(by_key)]
