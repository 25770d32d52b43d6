"""Rows into signed events, such that the same row of the same run is the same request however often it is made.

client_message_id is a hash of run id and row key. A sealed body has the same bytes each time, so the relay sees the
same fingerprint and answers with the message it has; created_at may differ, it is not part of that. Runs on the driver:
this is where the key is.
"""

from __future__ import annotations

import json

import msgspec
from blake3 import blake3

from posthouse.client.messages.compose import Composer, Request
from posthouse.client.signing import Signer, sign_event, with_mesh
from posthouse.keys.box import ENC, seal_box_repeatably
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.model.event_structure import check_structure
from posthouse.model.ids import Minter
from posthouse.pipeline.sink.row import SinkRow

_Tags = list[tuple[str, ...]]


def message_id_of(run_id: str, row_key: str) -> str:
    """Return the client_message_id of a row."""
    return "pipeline-" + blake3(json.dumps([run_id, row_key]).encode()).hexdigest()[:48]


class Drafts:
    """Makes the events of one run."""

    def __init__(self, signer: Signer, clock: Clock, run_id: str, mesh: str) -> None:
        self._signer = signer
        self._composer = Composer(signer, Minter(clock))
        self._run_id = run_id
        self._mesh = mesh

    def event(self, row: SinkRow, destination: str | None) -> Event:
        """Return the event of a row; `destination` is #topic or node id, for a message."""
        return self._message(row, destination) if destination is not None else self._other(row)

    def _message(self, row: SinkRow, destination: str) -> Event:
        client_message_id = message_id_of(self._run_id, row.row_key)
        given = self._composer.request(
            destination,
            row.body,
            self._mesh,
            {
                "client_message_id": client_message_id,
                "reply_to": row.reply_to,
                "priority": row.priority,
                "meta": _object(row),
                "is_sealed": False,
            },
        )
        return self._composer.freeze(given) if given.node is None else self._sealed(given, given.node)

    def _sealed(self, request: Request, reader: str) -> Event:
        key = self._signer.key
        content = seal_box_repeatably(key, reader, request.body.encode(), request.client_message_id)
        clear = self._composer.freeze(request)
        tags = [("enc", ENC), *(tag for tag in clear.tags)]
        return sign_event(key, clear.kind, content, tags, clear.created_at_ns)

    def _other(self, row: SinkRow) -> Event:
        created_at_ns = row.created_at_ns
        assert created_at_ns is not None  # a row without it was refused
        event = sign_event(self._signer.key, row.kind, row.body, with_mesh(_tags(row), self._mesh), created_at_ns)
        check_structure(event)
        return event


def _object(row: SinkRow) -> dict[str, object] | None:
    if row.meta is None:
        return None
    try:
        return msgspec.json.decode(row.meta, type=dict[str, object])
    except msgspec.DecodeError as fault:
        raise error("sink_rows_invalid", reason=f"meta of row {row.row_key!r}: {fault}") from fault


def _tags(row: SinkRow) -> _Tags:
    if row.tags is None:
        return []
    try:
        return msgspec.json.decode(row.tags, type=_Tags)
    except msgspec.DecodeError as fault:
        raise error("sink_rows_invalid", reason=f"tags of row {row.row_key!r}: {fault}") from fault
