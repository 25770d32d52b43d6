"""What agents say in the made-up history, and when in a week they say it."""

from __future__ import annotations

from random import Random

DAY_S = 86_400
_HOURS = (1, 1, 1, 1, 1, 2, 4, 8, 16, 24, 28, 26, 14, 20, 28, 26, 22, 16, 10, 7, 5, 3, 2, 1)
_VERBS = ("check", "rewrite", "measure", "merge", "review", "test", "document", "revert", "explain", "split")
_THINGS = (
    *("the parser", "the retry loop", "last night's build", "the failing import", "the invoice run"),
    *("the search index", "branch 41", "the onboarding text", "the cache sizes", "the migration"),
)
_TAILS = (
    *("before noon", "and tell me what it costs", "with the small model first", "as agreed"),
    *("and attach the log", "if the queue allows", "once more", ""),
)
_ANSWERS = ("Done", "Half done", "Not possible as it stands", "Looks right", "Needs a second pair of eyes", "Finished")
FAILURES = (
    "ToolError: the compiler ended with status 1",
    "TimeoutError: no answer from the search service",
    "ValueError: the plan has no step 4",
)


def request_text(rng: Random) -> str:
    """Return what one agent asks of another."""
    return f"Please {rng.choice(_VERBS)} {rng.choice(_THINGS)} {rng.choice(_TAILS)}".strip() + "."


def answer_text(rng: Random) -> str:
    """Return an answer."""
    return (
        f"{rng.choice(_ANSWERS)}: {rng.choice(_VERBS)} {rng.choice(_THINGS)}. {'Details follow. ' * rng.randrange(4)}"
    )


def moments(rng: Random, count: int, days: int) -> list[float]:
    """Return so many times in seconds since the first midnight, in order, most of them in working hours."""
    hours = rng.choices(range(24), _HOURS, k=count)
    return sorted(rng.randrange(days) * DAY_S + hour * 3600 + rng.uniform(0, 3600) for hour in hours)
