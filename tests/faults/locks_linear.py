"""A checker of linearizability: is there an order of all operations that a sequential model allows?

The search of Wing and Gong with the memory of Lowe: take any operation that no unfinished one must precede, ask the
model, go on; never visit the same set of operations twice in a state that allows nothing new.

An operation with an unknown outcome is a guess: the search places it anywhere between its call and the moment it was
over by, or nowhere. Three rules keep the orders of guesses few, and none of them loses an order that matters: a guess
whose moment has passed is spent; of two guesses with the same effect the one called first goes first, or is spent; and
what was tried with fewer guesses spent need not be tried with more. The search is exact, and gives up by name.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FOREVER = 2**63
MOST_STEPS = 300_000  # of one search: about a minute


class Operation(Protocol):
    """What the search needs to know of an operation."""

    @property
    def called_ns(self) -> int:
        """When it was asked for."""
        ...

    @property
    def returned_ns(self) -> int:
        """When it was over: answered, or unable to take effect any more; FOREVER when that is not known."""
        ...

    @property
    def is_certain(self) -> bool:
        """Whether it took effect for sure: it was answered."""
        ...

    @property
    def effect(self) -> Hashable:
        """What it asked for: the model treats unanswered operations with the same effect alike."""
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


class UndecidedError(Exception):
    """The history allows too many orders: they were not all tried."""


def find_violation(
    history: Sequence[O], initial: S, step: Step[S, O], covers: Covers[S] = operator.eq
) -> Stuck[S, O] | None:
    """Return None when the history is linearizable."""
    return _Search(history, step, covers).run(initial)


class _Search(Generic[S, O]):
    """A set of operations is a number: bit n stands for the operation that was called as the n-th."""

    def __init__(self, history: Sequence[O], step: Step[S, O], covers: Covers[S]) -> None:
        self._history = sorted(history, key=lambda each: (each.called_ns, each.returned_ns))
        self._step = step
        self._covers = covers
        self._certain = sum(1 << at for at, each in enumerate(self._history) if each.is_certain)
        self._before = self._earlier_guesses()
        #: the certain operations that are done -> the guesses that were spent, and the state
        self._seen: dict[int, list[tuple[int, S]]] = defaultdict(list)

    def run(self, initial: S) -> Stuck[S, O] | None:
        stack = [(0, initial)]
        furthest: Stuck[S, O] = Stuck(-1, initial, ())
        for _ in range(MOST_STEPS):
            if not stack:
                return furthest
            done, state = stack.pop()
            if self._is_old(done, state):
                continue
            candidates, earliest = self._candidates(done)
            if earliest == FOREVER:
                return None
            if done.bit_count() > furthest.done:
                furthest = Stuck(done.bit_count(), state, tuple(self._history[at] for at in candidates))
            for at in candidates:
                operation = self._history[at]
                states = list(self._step(state, operation, min(earliest, operation.returned_ns)))
                if states:
                    after = self._add(done, at)
                    stack += [(after, each) for each in states]
        raise UndecidedError(f"{len(self._history)} operations; the furthest order has {furthest.done}")

    def _earlier_guesses(self) -> list[int]:
        """Return for each guess those of the same effect that were called and over no later: it can stand for them."""
        before = [0] * len(self._history)
        alike: dict[Hashable, list[int]] = defaultdict(list)
        for at, operation in enumerate(self._history):
            if not operation.is_certain:
                others = alike[operation.effect]
                before[at] = sum(1 << o for o in others if self._history[o].returned_ns <= operation.returned_ns)
                others.append(at)
        return before

    def _is_old(self, done: int, state: S) -> bool:
        spent = done & ~self._certain
        seen = self._seen[done & self._certain]
        if any(not fewer & ~spent and self._covers(each, state) for fewer, each in seen):
            return True
        seen.append((spent, state))
        return False

    def _candidates(self, done: int) -> tuple[list[int], int]:
        """Return the operations that may come next, and when the earliest answer to anything still open came.

        Whatever comes next was called before that moment, and took effect before it. The last returned is to be tried
        first: known outcomes before guesses, the earliest answer first.
        """
        open_ones: list[int] = []
        earliest = FOREVER
        for at in range(_first_missing(done), len(self._history)):
            operation = self._history[at]
            if operation.called_ns > earliest:
                break
            if not done >> at & 1:
                open_ones.append(at)
                if operation.is_certain:
                    earliest = min(earliest, operation.returned_ns)
        return sorted(
            (at for at in open_ones if self._history[at].called_ns <= earliest),
            key=lambda at: (self._history[at].is_certain, -self._history[at].returned_ns),
        ), earliest

    def _add(self, done: int, at: int) -> int:
        """Add an operation, and every guess that cannot come any more or that it stands for."""
        first, done = _first_missing(done), done | 1 << at | self._before[at]
        called_ns = self._history[done.bit_length() - 1].called_ns
        for each in range(first, done.bit_length() - 1):
            operation = self._history[each]
            if not operation.is_certain and operation.returned_ns < called_ns:
                done |= 1 << each
        return done


def _first_missing(done: int) -> int:
    return (~done & (done + 1)).bit_length() - 1
