"""Problems that a relay reports, as errors, and the back-off before the next attempt.

A known code becomes the error of the registry. An unknown code (of a newer relay) keeps its code, text and hint, and
its HTTP status decides whether it is transient. The back-off doubles up to a bound and has jitter, so that a thousand
clients do not reconnect at once. `transport` translates failures of the network itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from posthouse.model.codes.spec import ErrorSpec, Exit, Severity
from posthouse.model.errors import PROBLEM_MEMBERS, PosthouseError, Refused, Transient, error, error_from_problem

_RETRY_STATUS = frozenset({408, 425, 429, 502, 503, 504, 507})


def error_from(problem: Any, relay: str) -> PosthouseError:
    """Return the error that a problem object describes."""
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return error("answer_invalid", relay=relay, reason="a problem without a code")
    return error_from_problem(problem) or _unknown(problem)


def retry_after_s(failure: PosthouseError) -> float:
    """Return the delay that the relay asks for, or zero."""
    given = failure.fields.get("retry_after_s")
    return max(0.0, float(given)) if isinstance(given, int | float) and not isinstance(given, bool) else 0.0


def _unknown(problem: dict[str, Any]) -> PosthouseError:
    fields = {name: value for name, value in problem.items() if name not in PROBLEM_MEMBERS}
    status, hint = problem.get("status"), problem.get("hint") if isinstance(problem.get("hint"), str) else None
    number = status if isinstance(status, int) else 500
    is_transient = number in _RETRY_STATUS
    spec = ErrorSpec(
        code=problem["code"],
        status=number,
        text=str(problem.get("detail") or problem.get("title") or problem["code"])
        .replace("{", "{{")
        .replace("}", "}}"),
        hint=hint or "This relay is newer than this client; its documentation explains the code.",
        severity=Severity.TRANSIENT if is_transient else Severity.REFUSED,
        exit=Exit.UNREACHABLE if is_transient else Exit.REFUSED,
    )
    return (Transient if is_transient else Refused)(spec, fields, hint)


@dataclass
class Backoff:
    """The delays between the attempts of one series."""

    first_s: float = 0.1
    max_s: float = 30.0
    #: source of the jitter; tests pass a seeded one
    chance: random.Random = field(default_factory=random.SystemRandom)
    #: attempts since the last success
    attempts: int = 0

    def next_s(self) -> float:
        """Return the delay before the next attempt: between half of the doubled delay and all of it."""
        # bounded, because after a week of failed attempts the power would exceed a float
        longest = min(self.max_s, self.first_s * 2.0 ** min(self.attempts, 30))
        self.attempts += 1
        return longest * self.chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start over after a success."""
        self.attempts = 0
