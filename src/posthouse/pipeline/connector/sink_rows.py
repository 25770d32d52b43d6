"""Input of a write: its options, and the rows that become messages or events.

Executors validate all rows before the driver sends the first one. Executors also receive the options, so those hold
the path of a key file, never a key. This module does no I/O and imports neither the client nor pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from posthouse.files import home_directory
from posthouse.model.errors import error
from posthouse.model.event import MESSAGE
from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

RUN_ID_MAX_BYTES = 255


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The destination of rows, and the run id that makes a repeated write idempotent."""

    relay: str
    run_id: str
    mesh: str = DEFAULT_MESH
    #: The user's posthouse directory on the driver, with key.json and pins.json.
    home: str = ""
    key_file: str | None = None
    tls_ca: str | None = None
    allow_plain: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkOptions:
        """Parse the options of a write, or raise sink_option_invalid."""
        run_id = _required(given, "run_id")
        if len(run_id.encode()) > RUN_ID_MAX_BYTES:
            raise error("sink_option_invalid", option="run_id", reason=f"it has more than {RUN_ID_MAX_BYTES} bytes")
        return cls(
            relay=_required(given, "relay"),
            run_id=run_id,
            mesh=validate_mesh_name(given.get("mesh") or DEFAULT_MESH),
            home=given.get("home") or str(home_directory()),
            key_file=given.get("key_file"),
            tls_ca=given.get("tls_ca"),
            allow_plain=given.get("allow_plain", "false").lower() == "true",
        )

    def as_strings(self) -> dict[str, str]:
        """Return the options as strings, for Spark's writer and `of`."""
        found = {name: getattr(self, name) for name in ("relay", "run_id", "mesh", "home", "key_file", "tls_ca")}
        texts = {name: str(value) for name, value in found.items() if value}
        return texts | {"allow_plain": str(self.allow_plain).lower()}

    def key_path(self) -> Path:
        """Return the path of the signing key."""
        return Path(self.key_file) if self.key_file else Path(self.home) / "key.json"


def _required(given: Mapping[str, str], name: str) -> str:
    value = given.get(name)
    if not value:
        raise error("sink_option_invalid", option=name, reason="it is missing")
    return value


REQUIRED = ("row_key", "body")
OPTIONAL = ("to", "meta", "reply_to", "priority", "kind", "tags", "created_at_ns")


class SinkRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: a message (to, meta, reply_to, priority) or another event (tags, created_at_ns)."""

    #: Identifies the row within its run.
    row_key: str
    body: str
    #: #topic, node id or member name.
    to: str | None = None
    #: A JSON object.
    meta: str | None = None
    reply_to: str | None = None
    priority: str | None = None
    kind: int = MESSAGE
    #: A JSON list of lists of strings.
    tags: str | None = None
    created_at_ns: int | None = None

    @property
    def is_message(self) -> bool:
        return self.kind == MESSAGE


def check_columns(names: Iterable[str]) -> None:
    """Raise sink_rows_invalid if a column is missing or unknown."""
    found = set(names)
    if missing := [name for name in REQUIRED if name not in found]:
        raise error("sink_rows_invalid", reason=f"they lack the column {missing[0]}")
    if unknown := sorted(found - {*REQUIRED, *OPTIONAL}):
        raise error("sink_rows_invalid", reason=f"the column {unknown[0]} is unknown")


def read_row(values: Mapping[str, Any]) -> SinkRow:
    """Validate and return a row, or raise sink_rows_invalid."""
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
    """Return each row once, ordered by key; raise sink_rows_invalid if a key has two different rows."""
    by_key: dict[str, SinkRow] = {}
    for row in rows:
        if by_key.setdefault(row.row_key, row) != row:
            raise error("sink_rows_invalid", reason=f"two rows have the key {row.row_key!r}")
    return [by_key[key] for key in sorted(by_key)]
