"""A checker of linearizability: is there an order of all operations that a sequential model allows?

The search of Wing and Gong with the memory of Lowe: take any operation that no unfinished one must precede, ask the
model, go on; never visit the same set of operations in the same state twice. Operations whose outcome nobody knows may
be placed anywhere after their call, or nowhere. It is exact: no answer is a guess. Nothing kept does this in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FOREVER = 2**63


class Operation(Protocol):
    """What the search needs to know of an operation."""

    @property
    def called_ns(self) -> int:
        """When it was asked for."""
        ...

    @property
    def returned_ns(self) -> int:
        """When it was answered; FOREVER when nobody knows its outcome."""
        ...


S = TypeVar("S", bound=Hashable)
O = TypeVar("O", bound=Operation)  # noqa: E741 - an operation
#: state, operation and the moment by which it took effect -> the states after it
Step = Callable[[S, O, int], Iterable[S]]


@dataclass(frozen=True)
class Stuck(Generic[S, O]):
    """Why a history is not linearizable: the furthest that any order came, and what could not follow there."""

    done: int
    state: S
    candidates: tuple[O, ...]


def find_violation(history: Sequence[O], initial: S, step: Step[S, O]) -> Stuck[S, O] | None:
    """Return None when the history is linearizable."""
    return _Search(history, step).run(initial)


class _Search(Generic[S, O]):
    def __init__(self, history: Sequence[O], step: Step[S, O]) -> None:
        self._history = sorted(history, key=lambda each: (each.called_ns, each.returned_ns))
        self._step = step
        self._required = sum(1 << at for at, each in enumerate(self._history) if each.returned_ns < FOREVER)
        self._seen: set[tuple[int, S]] = set()

    def run(self, initial: S) -> Stuck[S, O] | None:
        stack = [(0, initial)]
        furthest: Stuck[S, O] = Stuck(-1, initial, ())
        while stack:
            done, state = stack.pop()
            if done & self._required == self._required:
                return None
            if (done, state) in self._seen:
                continue
            self._seen.add((done, state))
            candidates, earliest = self._candidates(done)
            if (count := (done & self._required).bit_count()) > furthest.done:
                furthest = Stuck(count, state, tuple(self._history[at] for at in candidates))
            # the last pushed is tried first: known outcomes before guesses, the earliest answer first
            candidates.sort(key=lambda at: self._history[at].returned_ns, reverse=True)
            for at in candidates:
                stack += [(done | 1 << at, after) for after in self._step(state, self._history[at], earliest)]
        return furthest

    def _candidates(self, done: int) -> tuple[list[int], int]:
        """Return the operations that may come next, and when the earliest answer to anything still open came.

        Whatever comes next was called before that moment, and took effect before it.
        """
        open_ones: list[int] = []
        earliest = FOREVER
        at = (~done & (done + 1)).bit_length() - 1  # the first that is not done
        while at < len(self._history):
            operation = self._history[at]
            if operation.called_ns > earliest:
                break
            if not done >> at & 1:
                open_ones.append(at)
                earliest = min(earliest, operation.returned_ns)
            at += 1
        return [at for at in open_ones if self._history[at].called_ns <= earliest], earliest
