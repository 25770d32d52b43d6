"""Refusals of the local interface: {error, hint, detail, ...}."""

from __future__ import annotations

from posthouse.answer import JSON, Answer, refusal_answer
from posthouse.model.errors import PosthouseError

_REALM = "posthouse daemon"


def refusal(failure: PosthouseError) -> Answer:
    """Return a failure with the fields of the case."""
    fields = {name: value for name, value in failure.fields.items() if name not in ("error", "hint", "detail")}
    body = {"error": failure.code, "hint": failure.hint, "detail": str(failure)} | fields
    return refusal_answer(failure, body, JSON, _REALM)
