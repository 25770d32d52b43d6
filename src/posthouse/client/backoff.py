"""Back-off between attempts: doubling up to a bound, with jitter, so that a thousand clients do not come at once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """The waits of one series of attempts."""

    first_s: float = 0.1
    most_s: float = 30.0
    #: between 0 and 1; replaced in tests
    chance: random.Random = field(default_factory=random.SystemRandom)
    #: attempts since the last success
    attempts: int = 0

    def next_s(self) -> float:
        """Return how long to wait before the next attempt: at least half of the doubled wait, at most all of it."""
        # the exponent is bounded, or a relay that is away for a week would make a number too large for a float
        longest = min(self.most_s, self.first_s * 2.0 ** min(self.attempts, 30))
        self.attempts += 1
        return longest * self.chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew after a success."""
        self.attempts = 0
