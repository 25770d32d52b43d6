"""/v1/export/{feed}: a feed as an Arrow IPC stream, for the pipeline; administrators only.

The header Posthouse-Cursor says where to go on, Posthouse-Extent what the journal holds. pyarrow is loaded when it is
first needed: a relay that nobody exports from does without it. The columns of a feed are a contract: names, order and
types here are those of its view.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from posthouse.answer import Answer
from posthouse.journal.extent import Extent
from posthouse.model.errors import error
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import CURSOR
from posthouse.relay.http.route import Route

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
CURSOR_HEADER = "Posthouse-Cursor"
EXTENT_HEADER = "Posthouse-Extent"
MAX_ROWS = 10_000  # of one answer: about 10 MB of ordinary events
_DEFAULT_ROWS = 1_000
_LOCK_INTEGERS = ("token", "lease_ms", "wait_ms", "boot_ns", "deadline_boot_ns", "former_token", "token_leap")
_INTEGERS = frozenset(
    {"seq", "at_ns", "kind", "created_at_ns", "expiration_s", "former_deadline_boot_ns", *_LOCK_INTEGERS}
)


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a feed."""

    after: Annotated[str, CURSOR] | None = None
    limit: Annotated[int, Meta(description="How many rows at most.", ge=1, le=MAX_ROWS)] | None = None


async def export(call: Call) -> Answer:
    """Return rows of a feed after a cursor."""
    given = call.arguments(ExportQuery)
    extent = await call.edge.core.store.extent()  # before the rows: what it promises is there
    columns, rows, cursor = await call.edge.core.feed(
        call.node, call.params["feed"], after=given.after, limit=given.limit or _DEFAULT_ROWS
    )
    return Answer(200, _encode(columns, rows), MEDIA_TYPE, {CURSOR_HEADER: cursor, EXTENT_HEADER: _describe(extent)})


def _describe(extent: Extent) -> str:
    return msgspec.json.encode(asdict(extent)).decode()


def _encode(columns: list[str], rows: list[tuple[Any, ...]]) -> bytes:
    try:
        pyarrow: Any = import_module("pyarrow")
    except ModuleNotFoundError as missing:
        hint = "Run `pip install 'posthouse[pipeline]'` where the relay runs."
        raise error("extra_missing", library="pyarrow", hint=hint) from missing
    schema = pyarrow.schema([(name, pyarrow.int64() if name in _INTEGERS else pyarrow.string()) for name in columns])
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    batch = pyarrow.record_batch([list(column) for column in values], schema=schema)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


ROUTES = (
    Route(
        "GET",
        "/v1/export/{feed}",
        export,
        "Export a feed as an Arrow IPC stream (administrators)",
        query=ExportQuery,
        answers={200: None},
        media_type=MEDIA_TYPE,
    ),
)
