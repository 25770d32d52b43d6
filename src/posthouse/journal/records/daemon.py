"""Records of the daemon's outbox and inbox: ids, sizes and states, never bodies.

`ref` is the row's id; for the inbox `actor` is the sender's node id.
"""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

_ROW = "the outbox row's id"
_CLIENT_ID = {"client_message_id": "the caller's id of the message, always"}
_LANDED = {"message_id": "the event id at the relay, always", "history_id": "its seq at the relay, always"}

DAEMON = (
    RecordType(
        "outbox.queued",
        _ROW,
        _CLIENT_ID
        | {
            "fingerprint": "hex of the request fingerprint, always",
            "destination": "member or topic, always",
            "size": "bytes of the event, always",
        },
    ),
    RecordType("outbox.inflight", _ROW, {"ids": "all rows of the frame, always"}),
    RecordType("outbox.deferred", _ROW, {"attempts": "so far, always", "code": "the transient error, always"}),
    RecordType("outbox.done", _ROW, _CLIENT_ID | _LANDED),
    RecordType("outbox.dead", _ROW, _CLIENT_ID | {"code": "the permanent error, or the age; always"}),
    RecordType(
        "outbox.aborted",
        _ROW,
        _CLIENT_ID | {"aborted_by": "who did it, always", "superseded_by": "the row that replaces it"},
    ),
    RecordType("outbox.pressure", "the outbox", {"bytes": "in use, always", "max_bytes": "the bound, always"}),
    RecordType(
        "inbox.received",
        "the inbox row's id",
        _CLIENT_ID
        | {
            "message_id": "the event id, always",
            "topic": "the topic, absent for a direct message",
            "size": "bytes of the body, always",
            "undecryptable": "true when it could not be opened",
        },
    ),
    RecordType("inbox.seen", "the last of the rows", {"ids": "the inbox rows, always"}),
    RecordType("inbox.deleted", "the last of the rows", {"count": "how many rows were too old, always"}),
)
