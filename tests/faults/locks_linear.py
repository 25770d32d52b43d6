"""A checker of linearizability: is there an order of all operations that a sequential model allows?

The search of Wing and Gong with the memory of Lowe: take any operation that no unfinished one must precede, ask the
model, go on; never visit the same set of operations twice in a state that allows nothing new. Operations whose outcome
nobody knows are placed anywhere between their call and the moment they were over by, or nowhere; once that moment has
passed they count as done, so what is told apart stays small. It is exact: no answer is a guess.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

FOREVER = 2**63


class Operation(Protocol):
    """What the search needs to know of an operation."""

    @property
    def called_ns(self) -> int:
        """When it was asked for."""
        ...

    @property
    def returned_ns(self) -> int:
        """When it was over: answered, or unable to take effect any more; FOREVER when nobody knows."""
        ...

    @property
    def is_certain(self) -> bool:
        """Whether it took effect for sure: it was answered."""
        ...


S = TypeVar("S", bound=Hashable)
O = TypeVar("O", bound=Operation)  # noqa: E741 - an operation
#: state, operation and the moment by which it took effect -> the states after it
Step = Callable[[S, O, int], Iterable[S]]
#: whether whatever can follow the second state can follow the first
Covers = Callable[[S, S], bool]


@dataclass(frozen=True)
class Stuck(Generic[S, O]):
    """Why a history is not linearizable: the furthest that any order came, and what could not follow there."""

    done: int
    state: S
    candidates: tuple[O, ...]


def find_violation(
    history: Sequence[O], initial: S, step: Step[S, O], covers: Covers[S] = operator.eq
) -> Stuck[S, O] | None:
    """Return None when the history is linearizable."""
    return _Search(history, step, covers).run(initial)


class _Done(NamedTuple):
    """A set of operations in the order of their calls: all before `first`, and the bits of `more` from there on."""

    first: int = 0
    more: int = 0

    def has(self, at: int) -> bool:
        return at < self.first or bool(self.more >> (at - self.first) & 1)

    @property
    def size(self) -> int:
        return self.first + self.more.bit_count()


class _Search(Generic[S, O]):
    def __init__(self, history: Sequence[O], step: Step[S, O], covers: Covers[S]) -> None:
        self._history = sorted(history, key=lambda each: (each.called_ns, each.returned_ns))
        self._step = step
        self._covers = covers
        self._seen: dict[_Done, list[S]] = defaultdict(list)

    def run(self, initial: S) -> Stuck[S, O] | None:
        stack = [(_Done(), initial)]
        furthest: Stuck[S, O] = Stuck(-1, initial, ())
        while stack:
            done, state = stack.pop()
            if self._is_old(done, state):
                continue
            candidates, earliest = self._candidates(done)
            if earliest == FOREVER:
                return None
            if done.size > furthest.done:
                furthest = Stuck(done.size, state, tuple(self._history[at] for at in candidates))
            for at in candidates:
                operation = self._history[at]
                states = list(self._step(state, operation, min(earliest, operation.returned_ns)))
                if states:
                    after = self._add(done, at)
                    stack += [(after, each) for each in states]
        return furthest

    def _is_old(self, done: _Done, state: S) -> bool:
        seen = self._seen[done]
        if any(self._covers(each, state) for each in seen):
            return True
        seen.append(state)
        return False

    def _candidates(self, done: _Done) -> tuple[list[int], int]:
        """Return the operations that may come next, and when the earliest answer to anything still open came.

        Whatever comes next was called before that moment, and took effect before it. The last returned is to be tried
        first: known outcomes before guesses, the earliest answer first.
        """
        open_ones: list[int] = []
        earliest = FOREVER
        for at in range(done.first, len(self._history)):
            operation = self._history[at]
            if operation.called_ns > earliest:
                break
            if not done.has(at):
                open_ones.append(at)
                if operation.is_certain:
                    earliest = min(earliest, operation.returned_ns)
        return sorted(
            (at for at in open_ones if self._history[at].called_ns <= earliest),
            key=lambda at: (self._history[at].is_certain, -self._history[at].returned_ns),
        ), earliest

    def _add(self, done: _Done, at: int) -> _Done:
        """Add an operation, and every guess that cannot come any more: over before one that is done was called."""
        first, more = done.first, done.more | 1 << (at - done.first)
        last = first + more.bit_length() - 1
        called_ns = self._history[last].called_ns
        for each in range(first, last):
            operation = self._history[each]
            if not operation.is_certain and operation.returned_ns < called_ns:
                more |= 1 << (each - first)
        behind = (~more & (more + 1)).bit_length() - 1
        return _Done(first + behind, more >> behind)
