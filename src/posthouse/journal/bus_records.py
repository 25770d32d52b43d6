"""The record types that a bus writes: messages, their handling, dead letters, endpoints.

The rule for changes is in posthouse.journal.records, which lists the types of every store. Only `bus.published` and
`bus.failed` have content of people and agents. Loads no SQLite: Spark workers use it.
"""

from __future__ import annotations

from posthouse.journal.daemon_records import RecordType

_MESSAGE = "the message id"
_ENDPOINT = {
    "endpoint": "the subject of the endpoint, always",
    "endpoint_hash": "the name of its mailbox, always",
}
_DEAD_MESSAGE = _ENDPOINT | {
    "subject": "the subject of the message, always",
    "created_at_ms": "Unix milliseconds of the message, always",
    "expires_at_ms": "Unix milliseconds when it expires, always",
}
_RESERVED = "[journal seq, boot time in ns, 1 if it counted for the rate] at the time of the decision"
_BOOT = "boot time in ns of the report to the breaker, absent if the breaker got no report"
# actor is the subject of the sender.
BUS = (
    RecordType(
        "bus.published",
        _MESSAGE,
        _ENDPOINT
        | {
            "envelope": "the complete envelope as stored, always",
            "published_to": "the wildcard subject that was published to",
            "requeued_from": "the id of the dead letter it was made from",
            "reserved": _RESERVED,
        },
        content=("envelope.payload",),
    ),
    RecordType("bus.handled", _MESSAGE, _ENDPOINT | {"handler_ms": "total time of the handlers"}),
    RecordType(
        "bus.failed",
        _MESSAGE,
        _DEAD_MESSAGE | {"reason": "the exception of the handler, always", "boot_ns": _BOOT},
        content=("reason",),
    ),
    RecordType(
        "bus.dead",
        _MESSAGE,
        _DEAD_MESSAGE
        | {
            "reason": "why it is a dead letter, always",
            "refused": "access_denied or budget_exceeded when a rule refused the publish",
            "budget": "the budget that the rules checked",
            "in_reply_to": "the message that it answers, if it is a return",
            "reserved": _RESERVED,
        },
    ),
    RecordType(
        "bus.redelivered",
        f"{_MESSAGE}; it waits in its mailbox again, because the process that had taken it ended",
        _ENDPOINT
        | {
            "attempt": "how often it was started before and not finished, always",
            "adopted": "true if bus.db had lost its row",
        },
    ),
    RecordType("bus.requeued", "the id of the dead letter", _ENDPOINT | {"message_id": "the new message, always"}),
    RecordType(
        "bus.purged",
        "the mailbox",
        {
            "ids": "ids of the deleted dead letters, always",
            "by_limit": "true if the refused messages of the mailbox had too many dead letters",
        },
    ),
    RecordType(
        "bus.trimmed",
        "the mailbox",
        {"ids": "ids of the dead letters of refused messages whose payload was deleted to make room, always"},
    ),
    RecordType("bus.registered", "the endpoint", _ENDPOINT | {"owner": "the owner, who alone may register it again"}),
    RecordType("bus.unregistered", "the endpoint", _ENDPOINT),
    RecordType(
        "bus.refused",
        "the reason",
        {
            "reason": "access_denied, rate_limited, backpressure, circuit_open or budget_exceeded; always",
            "key": "the sender and the endpoint, always",
            "minute": "the Unix minute, always",
            "count": "number of refusals in that minute, always",
            "endpoint_hash": "the mailbox, or * for the rate",
            "moments": "each refusal as [journal seq, boot time in ns, count]",
            "by_dead_letters": "true if the mailbox had room, but too many dead letters",
            "charged": "true if these publishes counted for the rate and left no other record",
        },
    ),
    RecordType(
        "bus.withdrawn",
        _MESSAGE,
        _ENDPOINT | {"reserved": f"{_RESERVED}; its file could not be written", "boot_ns": _BOOT},
    ),
    RecordType("bus.served", "the endpoint; a process now serves it and its breaker is closed", _ENDPOINT),
    RecordType("bus.left", "the endpoint; no process serves it now", _ENDPOINT),
    RecordType("bus.breaker_reset", "the endpoint whose breaker was closed by hand", _ENDPOINT),
    RecordType("bus.booted", "the boot id; boot times of earlier records cannot be compared with later ones", {}),
)
