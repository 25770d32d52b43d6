"""Error codes of the relay: idempotent accept, locks and fences, streams, meshes."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, transient

_IDEMPOTENCY: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "idempotency_key_reused",
        409,
        "the client_message_id {client_message_id!r} was used for another request ({conflict})",
        "Use a new client_message_id for a new message; repeat a request unchanged to retry it.",
    ),
)

_DELIVERIES: tuple[ErrorSpec, ...] = (
    transient(
        "queue_full",
        429,
        "the queue of {recipient} is full",
        "Send again later; the reader has to confirm what waits for it first.",
    ),
    ErrorSpec(
        "confirmation_without_effect",
        409,
        "none of the ids that the confirmation names could be closed by it",
        "See `ignored` for each id; a duplicate was confirmed before and needs nothing more.",
    ),
    ErrorSpec("mailbox_open", 409, "the mailbox of the mesh {mesh!r} is open on this connection", "Use it."),
    ErrorSpec("delivery_unknown", 404, "the message {id} was not queued for you", "Check the id and the key."),
    ErrorSpec(
        "delivery_closed",
        409,
        "the message {id} waits no more for this reader, it is {state}",
        "Nothing is left to do; an operator can requeue a parked message.",
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
        "wait_invalid",
        400,
        "a wait of {wait_ms} ms is not between 0 and {max_ms}",
        "Wait at most 10 min at once and ask again.",
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
        "{limit} clients wait already",
        "Try again later, with less waiting at once.",
    ),
    transient(
        "locks_too_fast",
        429,
        "{node} asks for more than {rate} lock operations per second",
        "Ask again after retry_after_s seconds.",
    ),
    ErrorSpec(
        "fence_stale",
        409,
        "the fencing token is not the present one of {resource!r}, or its lease is over",
        "Stop writing; acquire the lock again and use its token.",
    ),
    ErrorSpec(
        "fence_damaged",
        500,
        "the fence {path} holds no token",
        "Put back a token at least as high as the last one that passed; every write is refused until then.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "token_not_positive",
        400,
        "{token!r} is not a fencing token",
        "Use the token of a grant: a whole number of at least 1.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "fence_unknown",
        409,
        "the fencing token of {resource!r} was never granted to this author",
        "Acquire the lock with the key that signs the event.",
    ),
)

_ACCEPT: tuple[ErrorSpec, ...] = (
    transient(
        "earlier_refused",
        409,
        "an earlier event of this list with the same destination was refused",
        "Repair or drop the refused event, then send this one again; the order of a destination is kept.",
    ),
    transient(
        "rate_limited",
        429,
        "{key} sends more than {rate} events per second",
        "Send again after retry_after_s seconds.",
    ),
    ErrorSpec(
        "feed_unknown",
        404,
        "there is no feed named {feed!r}",
        "Ask for journal or events.",
    ),
    ErrorSpec(
        "prune_range_invalid",
        409,
        "the range {from_seq}..{to_seq} is not one of up to {most} records from the oldest on, which is {oldest_seq}",
        "Prune from the oldest seq on, in small ranges; nothing was deleted.",
    ),
    ErrorSpec(
        "epoch_mismatch",
        409,
        "the store's epoch is {epoch}, not the one given",
        "The store was restored or is another one; archive its present history first.",
    ),
)

_MESHES: tuple[ErrorSpec, ...] = (
    ErrorSpec("mesh_unknown", 404, "there is no mesh {mesh!r}", "Create it with `posthouse mesh create`."),
    ErrorSpec("mesh_exists", 409, "the mesh {mesh!r} exists already", "Choose another name."),
    ErrorSpec(
        "mesh_limit",
        409,
        "{count} meshes exist already, the limit",
        "Use an existing mesh; topics divide one as finely as needed.",
    ),
    ErrorSpec(
        "not_member",
        403,
        "{node} is not a member of the mesh {mesh!r}",
        "Join with an invite from an admin of the mesh.",
    ),
    ErrorSpec(
        "right_missing",
        403,
        "{node} may not {right} in the mesh {mesh!r}",
        "Ask an admin of the mesh for another role or access row.",
    ),
    ErrorSpec(
        "member_unknown",
        404,
        "{node} is not listed in the mesh {mesh!r}",
        "See `posthouse mesh members`.",
    ),
    ErrorSpec(
        "member_name_taken",
        409,
        "the name {name!r} belongs to another member of the mesh {mesh!r}",
        "Choose another name.",
    ),
    ErrorSpec(
        "last_admin",
        409,
        "{node} is the last admin of the mesh {mesh!r}",
        "Make another member admin first.",
    ),
    ErrorSpec("topic_exists", 409, "the topic {topic!r} exists already", "Use it."),
    ErrorSpec(
        "topic_unknown",
        404,
        "there is no topic {topic!r} in the mesh {mesh!r}",
        "A member creates a topic before anybody posts to it.",
    ),
    ErrorSpec(
        "mesh_row_limit",
        409,
        "the mesh {mesh!r} has {count} {what} already, the limit",
        "Remove some that are not needed any more.",
    ),
    ErrorSpec(
        "invite_invalid",
        403,
        "the invite is not one that this relay accepts: {reason}",
        "Ask an admin of the mesh for a new invite.",
    ),
)

RELAY: tuple[ErrorSpec, ...] = _IDEMPOTENCY + _DELIVERIES + _LOCKS + _ACCEPT + _MESHES
