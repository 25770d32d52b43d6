"""Requests and answers: messages whose sender waits for an answer until a deadline.

A request and its answers are ordinary messages. Members of `meta` mark them, an answer names its request in its
`e` tag, and the request's sender is the reply address:

    request       of a request: "now" if a responder must be connected, "queue" if the request may wait for one
    valid_until   of a request: its deadline. A reader that connects after it does not get the request as work
    answer        of an answer: partial, final, busy, failed or no_responder; a reply without it is final

The first answer that is not partial ends a request. Meta comes from other members, so a malformed member is ignored.
If you change a member: docs/protocol.md.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.freshness import VALID_UNTIL, read_freshness
from posthouse.model.limits import HOUR_S, SECOND_NS
from posthouse.model.message import Message
from posthouse.model.strict_json import parse_jcs

REQUEST, ANSWER = "request", "answer"
REQUEST_MAX_S = float(HOUR_S)  # a caller that could wait longer sends a plain message and reads its mail
REASON_MAX_CHARACTERS = 500


class RequestMode(enum.StrEnum):
    """Whether a request may wait for a responder."""

    NOW = "now"
    QUEUE = "queue"


class AnswerState(enum.StrEnum):
    """What an answer says about its request."""

    PARTIAL = "partial"
    FINAL = "final"
    BUSY = "busy"
    FAILED = "failed"
    NO_RESPONDER = "no_responder"


class RequestMark(NamedTuple):
    """What marks a message as a request."""

    mode: RequestMode
    #: wall nanoseconds
    deadline_ns: int

    def to_meta(self) -> dict[str, Any]:
        """Return the members of meta that mark the request."""
        return {REQUEST: self.mode.value, VALID_UNTIL: format_utc(self.deadline_ns)}


def read_request(meta: Any) -> RequestMark | None:
    """Return the mark of a request in a meta value, None for any other message."""
    deadline_ns = read_freshness(meta).valid_until_ns
    mode = meta.get(REQUEST) if isinstance(meta, dict) else None
    if deadline_ns is None or mode not in tuple(RequestMode):
        return None
    return RequestMark(RequestMode(mode), deadline_ns)


def read_answer_state(meta: Any) -> AnswerState:
    """Return the kind of answer that a reply with this meta gives; a plain reply is the final answer."""
    state = meta.get(ANSWER) if isinstance(meta, dict) else None
    return AnswerState(state) if state in tuple(AnswerState) else AnswerState.FINAL


def is_late_request(message: Message, now_ns: int) -> bool:
    """Return True for a request whose deadline has passed."""
    mark = read_request(message_meta(message)) if REQUEST in message.meta else None
    return mark is not None and now_ns >= mark.deadline_ns


def message_meta(message: Message) -> Any:
    """Return the meta value of a message."""
    return parse_jcs(message.meta) if message.meta else None


def new_request(now_ns: int, timeout_s: float, *, queue: bool) -> RequestMark:
    """Return the mark of a request that is sent now, or raise value_invalid for a timeout out of bounds."""
    if not 0 < timeout_s <= REQUEST_MAX_S:
        raise error("value_invalid", name="timeout_s", reason=f"it is not above 0 and at most {REQUEST_MAX_S:g}")
    return RequestMark(RequestMode.QUEUE if queue else RequestMode.NOW, now_ns + round(timeout_s * SECOND_NS))


def is_answer_to(request: Message, requester: str, answer: Message, author: str) -> bool:
    """Return True if a message that names a request answers it: from its recipient, to the agent that asked.

    Any member may answer a request to a topic, in the topic or directly.
    """
    if author == requester and request.recipient != requester:
        return False
    if request.recipient is not None and (author, answer.from_agent) != (request.recipient, request.to_agent):
        return False
    if answer.recipient is None:
        return request.recipient is None and answer.destination_ref == request.destination_ref
    return (answer.recipient, answer.to_agent) == (requester, request.from_agent)


def unanswered(state: AnswerState, to: str, reason: str) -> PosthouseError:
    """Return the error of a request that a responder ended without an answer."""
    code = {
        AnswerState.BUSY: "responder_busy",
        AnswerState.FAILED: "request_failed",
        AnswerState.NO_RESPONDER: "no_responder",
    }[state]
    return error(code, subject=to, reason=reason[:REASON_MAX_CHARACTERS] or "it gave no reason")
