"""Reading answers of the accept path in tests."""

from __future__ import annotations

from posthouse.relay.wire.accept_results import Accepted, Answer, Declined


def accepted(answer: Answer) -> Accepted:
    """Return an answer that must be an accept."""
    assert isinstance(answer, Accepted), answer
    return answer


def code(answer: Answer) -> str:
    """Return the code of a refusal, or the status of an accept."""
    return answer.error.code if isinstance(answer, Declined) else str(answer.status)


def codes(answers: list[Answer]) -> list[str]:
    """Return the codes of several answers."""
    return [code(answer) for answer in answers]
