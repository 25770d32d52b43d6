"""Error codes of the relay: idempotent accept, locks and fences, streams, meshes."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, transient

_IDEMPOTENCY: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "idempotency_key_reused",
        409,
        "the client_message_id {client_message_id!r} was used for another request ({conflict})",
        "Use a new client_message_id for a new message; repeat a request unchanged to retry it.",
    ),
)

_LOCKS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "resource_invalid",
        400,
        "the resource name is not valid: {reason}",
        "Name a resource with any text of 1 to 512 bytes.",
    ),
    ErrorSpec(
        "lease_invalid",
        400,
        "a lease of {lease_ms} ms is not between {min_ms} and {max_ms}",
        "Ask for 1 s to 10 min and renew while you work.",
    ),
    ErrorSpec(
        "request_id_invalid",
        400,
        "the request_id is not printable text of 1 to {limit} bytes",
        "Use a fresh ULID or UUID for each acquire.",
    ),
    ErrorSpec(
        "held",
        409,
        "the lock is held by {holder} for another {remaining_ms} ms",
        "Wait with wait_ms, or try again later.",
    ),
    ErrorSpec(
        "held_by_self",
        409,
        "this node holds the lock already",
        "Renew it with its token, or release it first.",
    ),
    ErrorSpec(
        "request_spent",
        409,
        "the grant of request_id {request_id!r} is over",
        "Acquire again under a new request_id.",
    ),
    ErrorSpec(
        "request_reused",
        409,
        "request_id {request_id!r} was used with other parameters",
        "Use a new request_id for a new request; repeat a request unchanged to retry it.",
    ),
    ErrorSpec("not_holder", 409, "this node does not hold the lock", "Acquire it; stop writing until then."),
    ErrorSpec(
        "stale_token",
        409,
        "the token is older than the present one",
        "Use the token of the last grant; stop writing with the old one.",
    ),
    ErrorSpec(
        "lease_expired",
        409,
        "the lease has expired and cannot be renewed or released",
        "Stop writing and acquire the lock again.",
    ),
    ErrorSpec("unknown_resource", 404, "nobody ever locked this resource", "Acquire it first."),
    transient(
        "wait_queue_full",
        429,
        "{limit} clients wait for this lock already",
        "Try again later, with less waiting at once.",
    ),
    ErrorSpec(
        "fence_stale",
        409,
        "the fencing token is not the present one of {resource!r}, or its lease is over",
        "Stop writing; acquire the lock again and use its token.",
    ),
    ErrorSpec(
        "fence_unknown",
        409,
        "the fencing token of {resource!r} was never granted to this author",
        "Acquire the lock with the key that signs the event.",
    ),
)

RELAY: tuple[ErrorSpec, ...] = _IDEMPOTENCY + _LOCKS
