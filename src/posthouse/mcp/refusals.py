"""Refusals for agents: code, message, fields, and a hint in terms of the tools and their arguments.

The registry's hints are for people, with commands that a model would try in a shell. A code that is not listed here
keeps that hint: the agent shows it to its user. If you rename a tool or an argument: rename it here, a test compares.
"""

from __future__ import annotations

from typing import Any

from posthouse.mcp import protocol
from posthouse.mcp.protocol import Message
from posthouse.model.errors import PosthouseError

_LATER = "Nothing was written. Call the tool again in a moment."
_USER = "You cannot change this: tell your user. "
#: error code -> hint; {field} stands for a field of the error
AGENT_HINTS: dict[str, str] = {
    # send, history
    "member_name_unknown": "Call `who` and use one of its names.",
    "agent_unknown": "Call `who` and use one of its names.",
    "recipient_agent_unknown": "Call `who` and use one of its names.",
    "agent_retired": "Call `who` and write to another agent or to its host.",
    "agent_full": "The agent's inbox is full of unread mail. Write to its host, or `send` again later.",
    "recipient_ambiguous": "Give `to` as NAME@HOST, as `who` shows it.",
    "address_invalid": "Give `to` as NAME@HOST, as `who` shows it.",
    "topic_unknown": "`who` lists the topics; `topic` with action create makes one.",
    "topic_exists": "Use it: `topic` with action follow, or `send` to it.",
    "topic_invalid": "A topic is letters, digits, _ and -, in parts separated by dots.",
    "body_too_large": "Shorten `message`, or write it to a file and send its path.",
    "budget_exceeded": "This conversation has used up its budget. If it must continue, `send` without `reply_to`.",
    "idempotency_key_reused": "Repeat the call unchanged, or leave `idempotency_key` out to send a new message.",
    "id_invalid": "Use an id exactly as `inbox`, `read` or `send` gave it; leave `idempotency_key` out.",
    "no_responder": "The recipient is not online. `send` without `wait_s`: it reads the message when it is back.",
    "responder_busy": "The recipient is busy. `send` without `wait_s`: it reads the message later.",
    "request_failed": "The recipient could not do what you asked.",
    "request_timeout": "No reply in time; the recipient will not act on it now. `send` again with more `wait_s`.",
    "queue_full": "The recipient has to read its mail first. `send` again later.",
    "rate_limited": _LATER,
    "insufficient_storage": _USER + "The disk of this host is full, or the relay has been away for long.",
    "cursor_invalid": "Give `before` exactly as the last `history` returned it, or leave it out.",
    # read, status
    "inbox_item_unknown": "Use an `id` from `inbox`, `wait` or `history`.",
    "outbox_row_unknown": "Use the `id` that `send` returned.",
    "message_unknown": "Use the `id` that `send` returned.",
    "id_ambiguous": "Give more digits of the `id`.",
    "message_stale": "Ask its sender if it still holds: `send` with `reply_to`. `read` with `confirm` shows it anyway.",
    # lock
    "held": "Call `lock` again with `wait_s`, or ask its holder: `send` to {holder}.",
    "held_by_self": "You hold it: `lock` with action renew or release and its `token`.",
    "not_holder": "Stop writing. `lock` with action acquire.",
    "stale_token": "Stop writing. Use the `token` of the last acquire.",
    "lease_expired": "Stop writing. `lock` with action acquire, then check what others wrote.",
    "unknown_resource": "No agent holds it. `lock` with action acquire.",
    "not_held": "No agent holds it. `lock` with action acquire.",
    "resource_invalid": "Give `resource` as text of 1 to 512 bytes.",
    "request_spent": "This acquire has ended. `lock` again with action acquire.",
    "request_reused": "This acquire has ended. `lock` again with action acquire.",
    "locks_too_fast": _LATER,
    # reserve
    "reservation_conflict": "Work on other files, or ask its holder: `send` to {holder}.",
    "reservation_path_invalid": "Give `paths` that begin with /.",
    # the connection
    "relay_unreachable": "`send`, `inbox` and `read` work without the relay. Call everything else again later.",
    "daemon_busy": _LATER,
    "daemon_stopping": _LATER,
    "not_member": _USER + "The host is not a member of the mesh `{mesh}`.",
    "key_not_approved": _USER + "The new key of this host waits for approval by an admin of the mesh `{mesh}`.",
    "right_missing": _USER + "The host has no right to do this.",
}


def agent_hint(failure: PosthouseError) -> str:
    """Return the hint that an agent gets for a failure; a guess such as `Did you mean ...?` is kept."""
    hint = AGENT_HINTS.get(failure.code)
    if hint is None:
        return failure.hint
    guess, mark, _ = failure.hint.partition("?")
    is_guess = mark and guess.startswith("Did you mean")
    return (f"{guess}? " if is_guess else "") + hint.format_map(_Fields(failure.fields))


class _Fields(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "it"


def refused(failure: PosthouseError) -> Message:
    """Return a failure as the result of a call, with a hint in terms of the tools."""
    return protocol.refused_call(
        protocol.error_body(failure.code, str(failure), agent_hint(failure), _jsonable(failure.fields))
    )


def _jsonable(fields: dict[str, Any]) -> dict[str, Any]:
    plain = (str, int, float, bool, list, dict, type(None))
    return {name: value if isinstance(value, plain) else repr(value) for name, value in fields.items()}
