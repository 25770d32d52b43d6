"""Records of the bus; `actor` is the subject that sent the message, `ref` its id."""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

_MESSAGE = "the message id"
_ENDPOINT = {
    "endpoint": "the subject of the endpoint, always",
    "endpoint_hash": "the name of its mailbox, always",
}
_LETTER = _ENDPOINT | {
    "subject": "the subject of the message, always",
    "created_at_ms": "Unix milliseconds of the message, always",
    "expires_at_ms": "Unix milliseconds when it expires, always",
}

BUS = (
    RecordType(
        "bus.published",
        _MESSAGE,
        _ENDPOINT
        | {
            "envelope": "the whole envelope as it was stored, always",
            "published_to": "a wildcard subject",
            "requeued_from": "the id of the dead letter it was made from",
        },
    ),
    RecordType("bus.handled", _MESSAGE, _ENDPOINT | {"handler_ms": "how long the handlers took together"}),
    RecordType("bus.failed", _MESSAGE, _LETTER | {"reason": "what the handler raised, always"}),
    RecordType("bus.dead", _MESSAGE, _LETTER | {"reason": "why it is a dead letter, always"}),
    RecordType("bus.requeued", "the id of the dead letter", _ENDPOINT | {"message_id": "the new message, always"}),
    RecordType("bus.purged", "the mailbox", {"ids": "the dead letters that are gone, always"}),
    RecordType("bus.registered", "the endpoint", _ENDPOINT | {"owner": "who may register it again"}),
    RecordType("bus.unregistered", "the endpoint", _ENDPOINT),
    RecordType(
        "bus.refused",
        "the reason",
        {
            "reason": "access_denied, rate_limited, backpressure, circuit_open or budget_exceeded; always",
            "key": "the sender and the endpoint, always",
            "minute": "the Unix minute, always",
            "count": "how many in that minute, always",
        },
    ),
)
