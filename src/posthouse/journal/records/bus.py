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

_RESERVED = "[seq of the journal, boot time in ns, 1 if it counted for the rate] when the rules decided"
_BOOT = "boot time in ns when it was told to the breaker"

BUS = (
    RecordType(
        "bus.published",
        _MESSAGE,
        _ENDPOINT
        | {
            "envelope": "the whole envelope as it was stored, always",
            "published_to": "a wildcard subject",
            "requeued_from": "the id of the dead letter it was made from",
            "reserved": _RESERVED,
        },
    ),
    RecordType("bus.handled", _MESSAGE, _ENDPOINT | {"handler_ms": "how long the handlers took together"}),
    RecordType("bus.failed", _MESSAGE, _LETTER | {"reason": "what the handler raised, always", "boot_ns": _BOOT}),
    RecordType(
        "bus.dead",
        _MESSAGE,
        _LETTER
        | {
            "reason": "why it is a dead letter, always",
            "refused": "access_denied or budget_exceeded when a rule refused the publish",
            "budget": "the budget that the rules judged then",
            "reserved": _RESERVED,
        },
    ),
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
            "endpoint_hash": "the mailbox, or * for the rate",
            "moments": "each [seq of the journal, boot time in ns, how many] when a rule refused",
            "charged": "true when these publishes had counted for the rate and left no other record",
        },
    ),
    RecordType(
        "bus.withdrawn",
        _MESSAGE,
        _ENDPOINT | {"reserved": f"{_RESERVED}; its file could not be written", "boot_ns": _BOOT},
    ),
    RecordType("bus.served", "the endpoint; a process serves it from now on and its breaker is closed", _ENDPOINT),
    RecordType("bus.left", "the endpoint; nobody serves it any more", _ENDPOINT),
    RecordType("bus.breaker_reset", "the endpoint whose breaker was closed by hand", _ENDPOINT),
    RecordType("bus.booted", "the boot id; boot times before it mean nothing any more", {}),
)
