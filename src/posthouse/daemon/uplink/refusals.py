"""Which refusals of a relay are for good, and how long to wait after the others."""

from __future__ import annotations

import random

from posthouse.client.problems import retry_after_s
from posthouse.model.errors import PosthouseError, Refused

FIRST_S = 0.5
MOST_S = 30.0
JITTER = 0.25  # of the wait, either way
_NOT_YET = frozenset({401, 408, 425, 429})
#: says nothing about the message: this side ended, or what came could not be read
_NOT_ABOUT_IT = frozenset({"client_closed", "answer_invalid", "answer_missing"})


def is_permanent(failure: PosthouseError, *, is_admitted: bool) -> bool:
    """Tell whether sending the same event again can never help.

    A refusal of rights counts only from a relay that has let this node in: while it authenticates anew it may be
    refused for a moment.
    """
    status = failure.spec.status
    if not isinstance(failure, Refused) or failure.code in _NOT_ABOUT_IT or status in _NOT_YET:
        return False
    if status == 403:
        return is_admitted
    return 400 <= status < 500


def wait_s(failures: int, failure: PosthouseError, chance: random.Random) -> float:
    """Return the wait after so many frames without any progress, this one included."""
    base = min(MOST_S, FIRST_S * 2.0 ** min(failures - 1, 30))
    return max(base * chance.uniform(1 - JITTER, 1 + JITTER), min(retry_after_s(failure), MOST_S))
