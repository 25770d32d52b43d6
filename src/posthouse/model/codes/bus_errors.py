"""Error codes of the bus: endpoints, mailboxes, requests, and use of a closed Bus."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, transient

BUS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "endpoint_unknown",
        404,
        "no endpoint is registered for {subject!r}",
        "Register it first; `posthouse bus endpoints` lists the endpoints that exist.",
    ),
    ErrorSpec(
        "endpoint_owned",
        409,
        "the endpoint {subject} belongs to {owner!r}",
        "Register as its owner, choose another subject, or ask the owner to unregister it.",
    ),
    ErrorSpec(
        "endpoint_has_mail",
        409,
        "the endpoint {subject} has {unread} unread messages",
        "Read them first, or unregister with force: they become dead letters.",
    ),
    ErrorSpec(
        "endpoint_collision",
        409,
        "the mailbox {hash} of {subject} already belongs to {other}",
        "Choose another subject: two subjects cannot share a mailbox.",
    ),
    ErrorSpec(
        "endpoint_served",
        409,
        "another process serves the endpoint {subject}",
        "Stop that process first, or make the call in that process.",
    ),
    ErrorSpec(
        "endpoint_group_conflict",
        409,
        "the endpoint {subject} cannot be served {first} and {second} at the same time",
        "Give all subscriptions of the endpoint, in every process, the same `group`, or give none of them a group.",
    ),
    ErrorSpec(
        "message_unknown",
        404,
        "this bus has no message {id}",
        "Give the id of a message that this bus has stored; old messages are pruned from the journal.",
    ),
    ErrorSpec(
        "dead_letter_unknown",
        404,
        "{subject} has no dead letter {id}",
        "`posthouse bus dead` lists the dead letters.",
    ),
    ErrorSpec(
        "dead_letter_trimmed",
        410,
        "the payload of the dead letter {id} was dropped to make room for newer letters",
        "Let its sender publish the message again; deadLetters.maxBytes in config.json bounds what is kept.",
    ),
    ErrorSpec(
        "publish_refused",
        429,
        "the message to {subject} was refused: {reason}",
        "Publish with wait_s to wait for rate, room and breaker, or let the handler fail: its message is kept as a "
        "dead letter that can be requeued. `posthouse bus top` shows which limit is reached.",
    ),
    ErrorSpec(
        "payload_too_large",
        413,
        "the payload has more than {limit_bytes} bytes",
        "Store the content in a file and send its path, or raise bus.max_payload_bytes.",
    ),
    ErrorSpec(
        "bus_foreign_loop",
        409,
        "this Bus belongs to another event loop or thread: use bus.sync there",
        "Nothing was stored. Threads and other event loops call bus.sync.publish(...), or open a Bus of their own.",
    ),
    ErrorSpec(
        "bus_sync_in_loop",
        409,
        "bus.sync would block the event loop of the bus, which runs in this thread",
        "Await the method of the Bus itself: `await bus.publish(...)`.",
    ),
    ErrorSpec(
        "request_failed",
        502,
        "the request to {subject} failed: {reason}",
        "The reason comes from the responder. On its bus, `posthouse bus dead` shows the exception of the handler.",
    ),
    ErrorSpec(
        "request_undelivered",
        409,
        "the request to {subject} reached no endpoint: {reason}",
        "Check that the endpoint exists and that the access rules allow the write; `posthouse bus dead` shows why.",
    ),
    transient(
        "request_timeout",
        504,
        "no reply from {subject} within {timeout_s} s",
        "Check that the responder reads its mail, or that a process serves the endpoint and publishes to reply_to.",
    ),
    transient(
        "mailbox_unwritable",
        507,
        "message {message_id} could not be stored in {failed} of its mailboxes (stored in {delivered_to}): {reason}",
        "Free disk space or repair the data directory, then publish again to the endpoints that lack the message.",
    ),
    ErrorSpec(
        "bus_closed",
        409,
        "the bus on {path} is not open",
        "Use it inside `async with Bus(...)`, or `with Bus(...).sync` in a plain program.",
    ),
)
