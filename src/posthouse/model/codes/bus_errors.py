"""Error codes of the bus: endpoints, mailboxes, requests and the life of an open Bus."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, transient

BUS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "endpoint_unknown",
        404,
        "no endpoint is registered for {subject!r}",
        "Register it first, or see `posthouse bus endpoints` for those that exist.",
    ),
    ErrorSpec(
        "endpoint_owned",
        409,
        "the endpoint {subject} belongs to {owner!r}",
        "Register as its owner, choose another subject, or let the owner unregister it.",
    ),
    ErrorSpec(
        "endpoint_has_mail",
        409,
        "the endpoint {subject} has {unread} unread messages",
        "Read them first, or unregister with force: they then become dead letters.",
    ),
    ErrorSpec(
        "endpoint_collision",
        409,
        "the mailbox {hash} of {subject} already belongs to {other}",
        "Choose another subject: two subjects never share a mailbox.",
    ),
    ErrorSpec(
        "endpoint_served",
        409,
        "another process serves the endpoint {subject}",
        "Stop that process first, or let it do this.",
    ),
    ErrorSpec(
        "message_unknown",
        404,
        "no message {id} is known here",
        "Give the id of a message this bus has stored; old ones leave the journal after a while.",
    ),
    ErrorSpec(
        "dead_letter_unknown",
        404,
        "{subject} has no dead letter {id}",
        "See `posthouse bus dead` for those that exist.",
    ),
    ErrorSpec(
        "request_undelivered",
        409,
        "the request to {subject} reached nobody: {reason}",
        "Check that the endpoint exists and may be written to; the dead letters tell more.",
    ),
    transient(
        "request_timeout",
        504,
        "no reply from {subject} within {timeout_s} s",
        "Is the endpoint served, and does its handler publish to reply_to?",
    ),
    transient(
        "mailbox_unwritable",
        507,
        "message {message_id} could not be stored in {failed} of its mailboxes ({delivered_to} have it): {reason}",
        "Free space or repair the data directory, then publish again to the endpoints that lack it.",
    ),
    ErrorSpec(
        "bus_closed",
        409,
        "the bus on {path} is not open",
        "Use it inside `async with Bus(...)`, on the event loop that opened it.",
    ),
)
