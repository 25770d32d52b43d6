"""Refusals of the relay: RFC 9457 problems."""

from __future__ import annotations

from posthouse.answer import Answer, encode_safely, refusal_answer
from posthouse.model.errors import PosthouseError

PROBLEM = "application/problem+json"
_REALM = "posthouse"


def problem_answer(failure: PosthouseError) -> Answer:
    """Return the problem of a failure."""
    return refusal_answer(failure, failure.problem(), PROBLEM, _REALM)


def encode_problem(failure: PosthouseError) -> bytes:
    """Return a problem as JSON."""
    return encode_safely(failure.problem())
