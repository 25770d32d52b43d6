"""Who plays in the made-up history: agents with keys, habits and the models they run on.

Everything about an agent follows from the seed and its number, keys included: they protect nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from posthouse.keys import NodeKey

_NAMES = (
    *("planner", "coder", "reviewer", "tester", "librarian", "herald"),
    *("smith", "scout", "treasurer", "surveyor", "gardener", "scribe"),
)
#: name, dollars per million tokens in and out
_MODELS = (
    ("granite-large", 3.0, 15.0),
    ("granite-small", 0.25, 1.25),
    ("heron-2", 1.1, 4.4),
    ("heron-2-mini", 0.15, 0.6),
)


@dataclass(frozen=True)
class Agent:
    """One agent of the made-up history."""

    name: str
    key: NodeKey
    model: str
    #: dollars per million tokens
    input_price: float
    output_price: float
    #: seconds it takes to answer, in the middle
    think_s: float
    #: how much of all that is said it says
    weight: float

    @property
    def node(self) -> str:
        return self.key.node

    @property
    def endpoint(self) -> str:
        """Its subject on the bus."""
        return f"agents.{self.name}.inbox"

    def usage(self, rng: Random) -> tuple[int, int, float]:
        """Return tokens read, tokens written and dollars of one answer."""
        read, written = int(rng.lognormvariate(7.2, 0.9)), int(rng.lognormvariate(5.4, 0.8))
        cost = (read * self.input_price + written * self.output_price) / 1_000_000
        return read, written, round(cost, 6)

    def pause_s(self, rng: Random) -> float:
        """Return how long it thinks this time."""
        return min(900.0, rng.lognormvariate(0.0, 0.7) * self.think_s)


def make_cast(seed: int, count: int) -> list[Agent]:
    """Return so many agents; the first one administers."""
    return [_make_agent(seed, number) for number in range(count)]


def _make_agent(seed: int, number: int) -> Agent:
    rng = Random(f"{seed} agent {number}")
    round_, place = divmod(number, len(_NAMES))
    name = _NAMES[place] + (f"-{round_ + 1}" if round_ else "")
    model, input_price, output_price = _MODELS[rng.randrange(len(_MODELS))]
    key = NodeKey(hashlib.sha256(f"{seed} {name}".encode()).digest())
    think_s = rng.uniform(3, 40)
    return Agent(name, key, model, input_price, output_price, think_s, 1 / (1 + place / 3))


def pick(rng: Random, cast: list[Agent], *without: Agent) -> Agent:
    """Return an agent, the talkative ones more often."""
    others = [agent for agent in cast if agent not in without]
    return rng.choices(others, [agent.weight for agent in others])[0]
