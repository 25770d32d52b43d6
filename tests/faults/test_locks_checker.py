"""The checker of histories: it accepts what may have been, and finds what cannot."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.locks_linear import FOREVER, find_violation
from tests.faults.locks_model import INITIAL, MS, Op, State, step

S = 1_000 * MS


@dataclass(frozen=True)
class Register:
    """An operation on a register: writes a value, or reads it."""

    kind: str
    value: int
    called_ns: int
    returned_ns: int


def write_or_read(state: int, op: Register, _by_ns: int = 0) -> Iterator[int]:
    if op.kind == "write":
        yield op.value
    elif op.value == state:
        yield state


def by_brute_force(history: Sequence[Register]) -> bool:
    """Try every order of every choice of operations with unknown outcome."""
    known = [op for op in history if op.returned_ns < FOREVER]
    guesses = [op for op in history if op.returned_ns == FOREVER]
    for count in range(len(guesses) + 1):
        for chosen in itertools.combinations(guesses, count):
            for order in itertools.permutations([*known, *chosen]):
                if _respects_time(order) and _replays(order):
                    return True
    return False


def _respects_time(order: Sequence[Register]) -> bool:
    return all(order[j].returned_ns >= order[i].called_ns for i in range(len(order)) for j in range(i + 1, len(order)))


def _replays(order: Sequence[Register]) -> bool:
    states = [0]
    for op in order:
        states = [after for state in states for after in write_or_read(state, op)]
    return bool(states)


REGISTER_OPS = st.lists(
    st.builds(
        lambda kind, value, called, length: Register(kind, value, called, called + length if length < 9 else FOREVER),
        st.sampled_from(["write", "read"]),
        st.integers(0, 2),
        st.integers(0, 12),
        st.integers(0, 9),
    ),
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(REGISTER_OPS)
def test_search_agrees_with_brute_force(history: list[Register]) -> None:
    assert (find_violation(history, 0, write_or_read) is None) == by_brute_force(history)


def op(client: str, kind: str, called_s: float, returned_s: float | None, **more: Any) -> Op:
    answer = more.pop("answer", {})
    returned = FOREVER if returned_s is None else round(returned_s * S)
    more = {"lease_ms": 1_000} | more
    return Op(client, kind, round(called_s * S), returned, None if returned_s is None else answer, **more)


def grant(client: str, called_s: float, returned_s: float, token: int, **more: Any) -> Op:
    return op(client, "acquire", called_s, returned_s, answer={"token": token}, **more)


def refusal(client: str, kind: str, called_s: float, returned_s: float, code: str, **more: Any) -> Op:
    return op(client, kind, called_s, returned_s, answer={"code": code}, **more)


def shown(called_s: float, returned_s: float, owner: str | None, token: int) -> Op:
    answer = {"held": owner is not None, "owner": owner, "token": token}
    return op("x", "inspect", called_s, returned_s, answer=answer)


def is_fine(*history: Op) -> bool:
    return find_violation(history, INITIAL, step) is None


FINE: dict[str, list[Op]] = {
    "one after the other": [
        grant("a", 0, 0.1, 1),
        op("a", "release", 0.2, 0.3, token=1),
        grant("b", 0.4, 0.5, 2),
        refusal("a", "release", 0.6, 0.7, "not_holder", token=1),
    ],
    "taken over right after the lease": [grant("a", 0, 0.1, 1), grant("b", 0.9, 1.05, 2)],
    "renewed, so that the first end counts no more": [
        grant("a", 0, 0.1, 1),
        op("a", "renew", 0.8, 0.9, token=1),
        refusal("b", "acquire", 1.5, 1.6, "held"),
        grant("b", 1.7, 1.9, 2),
    ],
    "released by a request whose answer was lost": [
        grant("a", 0, 0.1, 1),
        op("a", "release", 0.2, None, token=1),
        grant("b", 0.3, 0.4, 2),
    ],
    "granted to a request whose answer was lost": [
        op("a", "acquire", 0, None),
        refusal("b", "acquire", 0.1, 0.2, "held"),
        grant("b", 1.3, 1.4, 2),
    ],
    "lost request that never arrived": [op("a", "acquire", 0, None), grant("b", 0.1, 0.2, 1)],
    "opened again by a restart": [
        grant("a", 0, 0.1, 1),
        op("relay", "restart", 0.8, 0.9),
        refusal("b", "acquire", 1.5, 1.6, "held"),
        grant("b", 1.8, 2.0, 2),
    ],
    "told twice under one request id": [
        grant("a", 0, 0.5, 1, request_id="q"),
        grant("a", 0.2, 0.6, 1, request_id="q"),
        refusal("a", "acquire", 1.7, 1.8, "request_spent", request_id="q"),
    ],
    "waited for": [
        grant("a", 0, 0.1, 1),
        grant("b", 0.2, 0.6, 2),
        op("a", "release", 0.4, 0.5, token=1),
        shown(0.7, 0.8, "b", 2),
    ],
}
WRONG: dict[str, list[Op]] = {
    "two holders": [grant("a", 0, 0.1, 1), grant("b", 0.5, 0.6, 2)],
    "two holders after a renewal": [
        grant("a", 0, 0.1, 1),
        op("a", "renew", 0.9, 0.95, token=1),
        grant("b", 1.2, 1.3, 2),
    ],
    "one token for two grants": [grant("a", 0, 0.1, 1), grant("b", 2, 2.1, 1)],
    "token that goes back": [grant("a", 0, 0.1, 5), grant("b", 2, 2.1, 4)],
    "token that leaps": [grant("a", 0, 0.1, 1), grant("b", 2, 2.1, 3)],
    "lease renewed after its end": [grant("a", 0, 0.1, 1), op("a", "renew", 1.2, 1.3, token=1)],
    "released by another": [grant("a", 0, 0.1, 1), op("b", "release", 0.2, 0.3, token=1)],
    "released twice": [
        grant("a", 0, 0.1, 1),
        op("a", "release", 0.2, 0.3, token=1),
        op("a", "release", 0.4, 0.5, token=1),
    ],
    "held by somebody whose lease is over": [grant("a", 0, 0.1, 1), refusal("b", "acquire", 1.2, 1.3, "held")],
    "held before anybody had it": [refusal("b", "acquire", 0, 0.1, "held"), grant("a", 0.2, 0.3, 1)],
    "expired before its end": [grant("a", 0, 0.1, 1), refusal("a", "renew", 0.5, 0.6, "lease_expired", token=1)],
    "shown as it was before": [
        grant("a", 0, 0.1, 1),
        op("a", "release", 0.2, 0.3, token=1),
        grant("b", 0.4, 0.5, 2),
        shown(0.6, 0.7, "a", 1),
    ],
    "shown free while it is held": [grant("a", 0, 0.1, 1), shown(0.2, 0.3, None, 1)],
    "granted anew under a request id": [
        grant("a", 0, 0.1, 1, request_id="q"),
        op("a", "release", 0.2, 0.3, token=1),
        grant("a", 0.4, 0.5, 2, request_id="q"),
    ],
    "lease that a restart cut short": [
        grant("a", 0, 0.1, 1),
        op("relay", "restart", 0.8, 0.9),
        grant("b", 1.2, 1.3, 2),
    ],
    "forgotten by a restart": [
        grant("a", 0, 0.1, 1),
        op("relay", "restart", 0.2, 0.3),
        refusal("a", "renew", 0.4, 0.5, "unknown_resource", token=1),
    ],
}


@pytest.mark.parametrize("name", FINE)
def test_what_may_have_been_is_accepted(name: str) -> None:
    assert is_fine(*FINE[name])


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_have_been_is_found(name: str) -> None:
    assert not is_fine(*WRONG[name])


def simulate(chance: random.Random, length: int) -> list[Op]:
    """Run a lock in its own time, and tell its operations with calls before and answers after the moment."""
    now, owner, token, ends, history = 0, "", 0, 0, []
    for _ in range(length):
        now += chance.choice([20, 100, 400, 1_200]) * MS
        who, kind = chance.choice("abc"), chance.choice(["acquire", "renew", "release", "inspect"])
        held = now < ends
        answer: dict[str, Any] = {}
        if kind == "acquire" and held:
            answer = {"code": "held_by_self" if owner == who else "held"}
        elif kind == "acquire":
            owner, token, ends = who, token + 1, now + 1_000 * MS
            answer = {"token": token}
        elif kind == "inspect":
            answer = {"held": held, "owner": owner if held else None, "token": token}
        elif not held or owner != who:
            continue
        else:
            ends = now + 1_000 * MS if kind == "renew" else now
        before, after = chance.randrange(1, 300) * MS, chance.randrange(1, 300) * MS
        history.append(Op(who, kind, max(0, now - before), now + after, answer, 1_000, token))
    return history


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_history_of_a_real_lock_is_accepted_whatever_overlaps(seed: int) -> None:
    history = simulate(random.Random(seed), 40)
    assert find_violation(history, INITIAL, step) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_history_with_one_grant_told_wrongly_is_found(seed: int) -> None:
    chance = random.Random(seed)
    history = simulate(chance, 40)
    grants = [each for each in history if each.answer and set(each.answer) == {"token"}]
    if not grants:
        return
    wrong = chance.choice(grants)
    assert wrong.answer is not None
    planted = Op(
        wrong.client, wrong.kind, wrong.called_ns, wrong.returned_ns, {"token": wrong.answer["token"] + 1}, 1_000
    )
    stuck = find_violation([planted if each is wrong else each for each in history], INITIAL, step)
    assert stuck is not None and isinstance(stuck.state, State)
