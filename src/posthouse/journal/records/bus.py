"""Records of the bus; `actor` is the subject that sent the message, `ref` its id."""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

_MESSAGE = "the message id"
_ENDPOINT = {
    "endpoint": "the subject of the endpoint, always",
    "endpoint_hash": "the name of its mailbox, always",
}

BUS = (
    RecordType(
        "bus.published",
        _MESSAGE,
        _ENDPOINT | {"envelope": "the whole envelope as it was stored, always", "published_to": "a wildcard subject"},
    ),
    RecordType("bus.handled", _MESSAGE, _ENDPOINT | {"handler_ms": "how long the handlers took together"}),
    RecordType("bus.failed", _MESSAGE, _ENDPOINT | {"reason": "what the handler raised, always"}),
    RecordType("bus.dead", _MESSAGE, _ENDPOINT | {"reason": "why it is a dead letter, always"}),
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
