"""The agents of the demo, their texts, and the timeline of the simulated week.

Everything about an agent follows from the seed and its number, including its key, which protects nothing. The clock
advances only between actions, after the product has finished all work of the previous action, so each record has the
time at which it would have happened.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.limits import DAY_S, SECOND_NS

_NAMES = (
    *("planner", "coder", "reviewer", "tester", "librarian", "herald"),
    *("smith", "scout", "treasurer", "surveyor", "gardener", "scribe"),
)
#: Name, dollars per million input tokens, dollars per million output tokens.
_MODELS = (
    ("granite-large", 3.0, 15.0),
    ("granite-small", 0.25, 1.25),
    ("heron-2", 1.1, 4.4),
    ("heron-2-mini", 0.15, 0.6),
)


@dataclass(frozen=True)
class Agent:
    """One agent of the demo."""

    name: str
    key: NodeKey
    model: str
    #: Dollars per million tokens.
    input_price: float
    output_price: float
    #: Median time to answer.
    think_s: float
    #: Relative share of the messages it sends.
    weight: float

    @property
    def node(self) -> str:
        return self.key.node

    @property
    def endpoint(self) -> str:
        """The agent's subject on the bus."""
        return f"agents.{self.name}.inbox"

    def usage(self, rng: Random) -> tuple[int, int, float]:
        """Return random input tokens, output tokens and dollars of one message."""
        read, written = int(rng.lognormvariate(7.2, 0.9)), int(rng.lognormvariate(5.4, 0.8))
        cost = (read * self.input_price + written * self.output_price) / 1_000_000
        return read, written, round(cost, 6)

    def pause_s(self, rng: Random) -> float:
        """Return a random time to answer."""
        return min(900.0, rng.lognormvariate(0.0, 0.7) * self.think_s)


def make_cast(seed: int, count: int) -> list[Agent]:
    """Return `count` agents; the first one is the administrator."""
    return [_make_agent(seed, number) for number in range(count)]


def _make_agent(seed: int, number: int) -> Agent:
    rng = Random(f"{seed} agent {number}")
    round_, index = divmod(number, len(_NAMES))
    name = _NAMES[index] + (f"-{round_ + 1}" if round_ else "")
    model, input_price, output_price = _MODELS[rng.randrange(len(_MODELS))]
    key = NodeKey(hashlib.sha256(f"{seed} {name}".encode()).digest())
    think_s = rng.uniform(3, 40)
    return Agent(name, key, model, input_price, output_price, think_s, 1 / (1 + index / 3))


def pick(rng: Random, cast: list[Agent], *without: Agent) -> Agent:
    """Return a random agent, weighted by its share of messages."""
    others = [agent for agent in cast if agent not in without]
    return rng.choices(others, [agent.weight for agent in others])[0]


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
    """Return a random request."""
    return f"Please {rng.choice(_VERBS)} {rng.choice(_THINGS)} {rng.choice(_TAILS)}".strip() + "."


def answer_text(rng: Random) -> str:
    """Return a random answer."""
    return (
        f"{rng.choice(_ANSWERS)}: {rng.choice(_VERBS)} {rng.choice(_THINGS)}. {'Details follow. ' * rng.randrange(4)}"
    )


def moments(rng: Random, count: int, days: int) -> list[float]:
    """Return `count` random times in seconds since the first midnight, sorted, most of them in working hours."""
    hours = rng.choices(range(24), _HOURS, k=count)
    return sorted(rng.randrange(days) * DAY_S + hour * 3600 + rng.uniform(0, 3600) for hour in hours)


#: Returns False if it did nothing.
Action = Callable[[], Awaitable[bool | None]]
Settle = Callable[[], Awaitable[None]]


class Timeline:
    """The planned actions, in order of time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._start_ns = clock.wall_ns()
        self._numbers = itertools.count()
        self._actions: list[tuple[int, int, Action]] = []

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return (self.clock.wall_ns() - self._start_ns) / SECOND_NS

    def at(self, seconds: float, action: Action) -> None:
        """Plan an action at a time, in seconds since the start."""
        at_ns = self._start_ns + round(seconds * SECOND_NS)
        heapq.heappush(self._actions, (at_ns, next(self._numbers), action))

    def after(self, seconds: float, action: Action) -> None:
        """Plan an action after a delay."""
        self.at(self.now_s + seconds, action)

    async def play(self, settle: Settle) -> None:
        """Run all actions, including those that actions plan; call `settle` after each one that did something."""
        while self._actions:
            at_ns, _, action = heapq.heappop(self._actions)
            if at_ns > self.clock.wall_ns():
                self.clock.advance((at_ns - self.clock.wall_ns()) / SECOND_NS)
            if await action() is not False:
                await settle()
