"""Error codes of the relay: idempotent accept, locks and fences, streams, meshes."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, transient

_IDEMPOTENCY: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "idempotency_key_reused",
        409,
        "the client_message_id {client_message_id!r} was used for a different request ({conflict})",
        "Use a new client_message_id for a new message; to retry a request, repeat it unchanged.",
    ),
)

_DELIVERIES: tuple[ErrorSpec, ...] = (
    transient(
        "queue_full",
        429,
        "the queue of {recipient} is full",
        "Retry later; the reader has to confirm waiting messages first.",
    ),
    ErrorSpec(
        "confirmation_without_effect",
        409,
        "the confirmation closed none of the ids that it names",
        "`ignored` gives the reason for each id; a duplicate was confirmed before and needs no action.",
    ),
    ErrorSpec(
        "receipt_without_effect",
        409,
        "the receipt says nothing new about the messages that it names",
        "`ignored` gives the reason for each id; a duplicate has its receipt and needs no action.",
    ),
    ErrorSpec(
        "mailbox_open",
        409,
        "the mailbox of the mesh {mesh!r} is already open on this connection",
        "Use the open mailbox.",
    ),
    ErrorSpec("delivery_unknown", 404, "the message {id} was not queued for this node", "Check the id and the key."),
    ErrorSpec(
        "delivery_closed",
        409,
        "the message {id} is {state} and does not wait for this reader",
        "No action is needed; an operator can requeue a dead letter.",
    ),
)

_REQUESTS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "request_malformed",
        400,
        "the message is not a request: {reason}",
        "A request is a message whose meta has `request` (now or queue) and `valid_until`, its deadline.",
    ),
    transient(
        "no_responder",
        503,
        "no responder is connected for {subject}: {reason}",
        "Retry when it is online, or let the request wait for it in the queue.",
    ),
    transient(
        "responder_busy",
        503,
        "{subject} is busy: {reason}",
        "Retry later.",
    ),
    transient(
        "open_requests_exceeded",
        429,
        "{count} requests are already waiting for answers",
        "Retry when some of them have ended; the limit is per node and for the whole relay.",
    ),
)

_WEBHOOKS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "webhook_url_invalid",
        400,
        "{url!r} cannot be the URL of a webhook: {reason}",
        "Give https://HOST/PATH without a user name; for e-mail mailto:person@example.org.",
    ),
    ErrorSpec(
        "webhook_address_refused",
        403,
        "{url!r} cannot be the URL of a webhook: {reason}",
        "Webhooks go to public addresses over https; the relay's operator lists others in relay.webhook_networks.",
    ),
    ErrorSpec(
        "webhook_email_unavailable",
        409,
        "this relay sends no e-mail",
        "Ask its operator to set relay.smtp_url and relay.smtp_from; ntfy and slack need no setting.",
    ),
    ErrorSpec(
        "webhook_networks_invalid",
        400,
        "relay.webhook_networks is invalid: {reason}",
        "Give addresses or networks separated by commas, such as 10.0.0.0/8, ::1.",
    ),
    ErrorSpec(
        "webhook_unknown",
        404,
        "there is no webhook {id!r} that you may manage",
        "`posthouse webhook ls` lists the webhooks of a mesh.",
    ),
    ErrorSpec(
        "hook_unknown", 404, "no incoming hook has this token", "Check the URL that `posthouse webhook in` printed."
    ),
    ErrorSpec(
        "hook_signature_invalid",
        403,
        "the signature in the header {header} does not match this request",
        "Enter the secret that `posthouse webhook in --github` printed at GitHub, and choose application/json.",
    ),
    transient(
        "hook_rate_exceeded", 429, "this incoming hook gets too many requests", "Send fewer, or add a second hook."
    ),
)

_LOCKS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "resource_invalid",
        400,
        "the resource name is invalid: {reason}",
        "A resource name is any text of 1 to 512 bytes.",
    ),
    ErrorSpec(
        "lease_invalid",
        400,
        "a lease of {lease_ms} ms is not between {min_ms} and {max_ms}",
        "Request 1 s to 10 min and renew the lease while you work.",
    ),
    ErrorSpec(
        "wait_invalid",
        400,
        "a wait of {wait_ms} ms is not between 0 and {max_ms}",
        "Wait at most 10 min per request and repeat the request.",
    ),
    ErrorSpec(
        "request_id_invalid",
        400,
        "the request_id is not printable text of 1 to {limit} bytes",
        "Use a new ULID or UUID for each acquire.",
    ),
    ErrorSpec(
        "session_invalid",
        400,
        "the session is not printable text of at most {limit} bytes",
        "Use a new ULID or UUID for each program that locks by itself.",
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
        "this session already holds the lock, or one that overlaps it",
        "Renew it with its token, or release it first. To wait for it, ask in another session.",
    ),
    ErrorSpec(
        "request_spent",
        409,
        "the grant of request_id {request_id!r} has ended",
        "Acquire again with a new request_id.",
    ),
    ErrorSpec(
        "request_reused",
        409,
        "request_id {request_id!r} was used with other parameters",
        "Use a new request_id for a new request; to retry a request, repeat it unchanged.",
    ),
    ErrorSpec("not_holder", 409, "this node does not hold the lock", "Stop writing and acquire the lock."),
    ErrorSpec(
        "stale_token",
        409,
        "the token is older than the current one",
        "Stop writing with the old token; use the token of the last grant.",
    ),
    ErrorSpec(
        "lease_expired",
        409,
        "the lease has expired and cannot be renewed or released",
        "Stop writing and acquire the lock again.",
    ),
    ErrorSpec("unknown_resource", 404, "this resource was never locked", "Acquire it first."),
    ErrorSpec(
        "not_held", 409, "no session holds {resource!r} under this name", "`posthouse lock ls --held` lists held locks."
    ),
    transient(
        "lock_watch_limit",
        429,
        "this connection already watches {limit} locks, which is the limit",
        "End a watch, or open another connection.",
    ),
    transient(
        "wait_queue_full",
        429,
        "{limit} clients are already waiting, which is the limit",
        "Retry later, or wait for fewer locks at a time.",
    ),
    transient(
        "locks_too_fast",
        429,
        "{node} sends more than {rate} lock operations per second",
        "Retry after retry_after_s seconds.",
    ),
    ErrorSpec(
        "fence_stale",
        409,
        "the fencing token is not the current one of {resource!r}, or its lease has ended",
        "Stop writing; acquire the lock again and use its token.",
    ),
    ErrorSpec(
        "fence_required",
        409,
        "a rule of the mesh {mesh!r} refuses this event without the fence of {resource!r}",
        "Acquire the lock and put its token into the fence tag of the event.",
    ),
    ErrorSpec(
        "fence_rule_invalid",
        400,
        "the fence rule is invalid: {reason}",
        "A rule has a replaceable or addressable kind, a prefix of d, and a resource of 1 to 512 bytes.",
    ),
    ErrorSpec(
        "fence_rule_unknown",
        404,
        "the mesh {mesh!r} has no fence rule for kind {kind} and the prefix {d_prefix!r}",
        "`posthouse mesh rule ls` lists the rules.",
    ),
    ErrorSpec(
        "not_newest",
        409,
        "the current event of this coordinate is newer, created at {created_at_ns}",
        "Nothing was written. Sign the event again with a larger created_at_ns.",
    ),
    ErrorSpec(
        "fence_damaged",
        500,
        "the fence {path} holds no token",
        "Restore a token at least as high as the last admitted one; until then every write is refused.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "token_not_positive",
        400,
        "{token!r} is not a fencing token",
        "Use the token of a grant: an integer of at least 1.",
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
        "Correct or drop the refused event, then send this one again: events of one destination stay in order.",
    ),
    transient(
        "stranger_rate_exceeded",
        429,
        "{payer} sent too many logins, or events from keys without rights; the relay checks at most {rate} per second",
        "Join the mesh with an invite before you publish; retry after retry_after_s seconds.",
    ),
    transient(
        "rate_limited",
        429,
        "{key} sends more than {rate} events per second",
        "Retry after retry_after_s seconds.",
    ),
    ErrorSpec(
        "event_deleted",
        410,
        "the author of the event {id} has deleted it",
        "Publish a new event if it is wanted after all.",
    ),
    ErrorSpec(
        "deletion_mismatch",
        409,
        "the deletion cannot name the event {id}: {reason}",
        "Sign one deletion for each mesh, and one with a p tag for each recipient of direct messages.",
    ),
    transient(
        "mesh_full",
        507,
        "the mesh {mesh!r} has no room: it stores {events} events with {bytes} bytes",
        "Delete events, or let an admin raise the limits; `posthouse mesh usage` shows both.",
    ),
    transient(
        "mesh_rate_limited",
        429,
        "the members of the mesh {mesh!r} send more than {rate} {what} per second",
        "Retry after retry_after_s seconds.",
    ),
    ErrorSpec(
        "pointer_unknown",
        404,
        "no event was written under the fence of {resource!r} in the mesh {mesh!r}",
        "Check the resource and the mesh; a fenced write creates the pointer.",
    ),
    ErrorSpec(
        "feed_unknown",
        404,
        "there is no feed named {feed!r}",
        "Feeds are journal and events.",
    ),
    ErrorSpec(
        "prune_range_invalid",
        409,
        "the range {from_seq}..{to_seq} does not start at the oldest seq ({oldest_seq}) or exceeds {most} records",
        "Nothing was deleted. Prune small ranges, starting at the oldest seq.",
    ),
    ErrorSpec(
        "epoch_mismatch",
        409,
        "the epoch of the store is {epoch}, not the given one",
        "The store was restored, or it is another store; archive its current history first.",
    ),
)

_MESHES: tuple[ErrorSpec, ...] = (
    ErrorSpec("mesh_unknown", 404, "there is no mesh {mesh!r}", "Create it with `posthouse mesh create`."),
    ErrorSpec("mesh_exists", 409, "the mesh {mesh!r} already exists", "Choose another name."),
    ErrorSpec(
        "mesh_limit",
        409,
        "{count} meshes exist, which is the limit",
        "Use an existing mesh; topics divide a mesh as finely as needed.",
    ),
    ErrorSpec(
        "mesh_suspended", 403, "the relay has suspended the mesh {mesh!r}", "Ask an admin of the relay to resume it."
    ),
    ErrorSpec(
        "mesh_deleted",
        410,
        "the mesh {mesh!r} was deleted",
        "Create a mesh with another name: a deleted name stays taken.",
    ),
    ErrorSpec(
        "mesh_needed",
        409,
        "the mesh {mesh!r} is part of the relay",
        "Remove its members instead, or delete its events with `posthouse relay delete --mesh`.",
    ),
    ErrorSpec(
        "mesh_limit_invalid",
        400,
        "the limit {name} is invalid: {reason}",
        "`posthouse mesh limits --help` lists the limits.",
    ),
    ErrorSpec(
        "mesh_limit_too_high",
        403,
        "the mesh {mesh!r} may have at most {most} for {name}, not {wanted}",
        "Ask an admin of the relay to allow more.",
    ),
    ErrorSpec(
        "main_stays_closed",
        403,
        "the mesh main stays closed: other machines can reach this relay, or relay.main_open is false",
        "Invite nodes, or create an open mesh with `posthouse mesh create NAME --open`.",
    ),
    ErrorSpec(
        "quota_reached",
        409,
        "this key has created {count} {what}, which is the limit for one key",
        "Use an existing one, or ask an admin of the relay to create it.",
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
        "Ask an admin of the mesh for another role or access rule.",
    ),
    ErrorSpec(
        "invite_unknown",
        404,
        "there is no usable invite {id!r} to the mesh {mesh!r}",
        "`posthouse mesh invites ls` lists the invites that can be used; others are expired, used up or revoked.",
    ),
    ErrorSpec(
        "member_unknown",
        404,
        "{node} is not a listed member of the mesh {mesh!r}",
        "`posthouse mesh members` lists the members.",
    ),
    ErrorSpec(
        "member_name_taken",
        409,
        "the name {name!r} belongs to another member of the mesh {mesh!r}",
        "Choose another name.",
    ),
    ErrorSpec(
        "member_name_similar",
        409,
        "the name {name!r} looks like {other!r}, another member of the mesh {mesh!r}",
        "Choose a name that differs in more than case, 0/o, 1/l/i or -/_.",
    ),
    ErrorSpec(
        "member_name_like_key",
        400,
        "the name {name!r} looks like a key",
        "Choose a name that does not begin with ed25519 and is not 8 or more hexadecimal digits.",
    ),
    ErrorSpec(
        "last_admin",
        409,
        "{node} is the last admin of the mesh {mesh!r}",
        "Give another member the role admin first.",
    ),
    ErrorSpec("topic_exists", 409, "the topic {topic!r} already exists", "Use the existing topic."),
    ErrorSpec(
        "topic_unknown",
        404,
        "there is no topic {topic!r} in the mesh {mesh!r}",
        "Create it first: `posthouse topic create {topic}`.",
    ),
    ErrorSpec(
        "mesh_row_limit",
        409,
        "the mesh {mesh!r} has {count} {what}, which is the limit",
        "Remove some that are not needed.",
    ),
    ErrorSpec(
        "invite_invalid",
        403,
        "the relay does not accept the invite: {reason}",
        "Ask an admin of the mesh for a new invite.",
    ),
)

RELAY: tuple[ErrorSpec, ...] = _IDEMPOTENCY + _DELIVERIES + _REQUESTS + _WEBHOOKS + _LOCKS + _ACCEPT + _MESHES
