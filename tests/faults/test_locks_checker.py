"""The checker of histories: it accepts what may have been, and finds what cannot."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults import locks_linear
from tests.faults.locks_linear import FOREVER, UndecidedError, find_violation
from tests.faults.locks_model import INITIAL, MS, Op, State, changed, covers, step

S = 1_000 * MS


@dataclass(frozen=True)
class Register:
    """An operation on a register: writes a value, or reads it."""

    kind: str
    value: int
    called_ns: int
    returned_ns: int
    is_certain: bool = True

    @property
    def effect(self) -> tuple[str, int]:
        return self.kind, self.value


def write_or_read(state: int, op: Register, _by_ns: int = 0) -> Iterator[int]:
    if op.kind == "write":
        yield op.value
    elif op.value == state:
        yield state


def by_brute_force(history: Sequence[Register]) -> bool:
    """Try every order of every choice of operations with unknown outcome."""
    known = [op for op in history if op.is_certain]
    guesses = [op for op in history if not op.is_certain]
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


def make_register(kind: str, value: int, called: int, length: int, end: str) -> Register:
    returned = FOREVER if end == "open" else called + length
    return Register(kind, value, called, returned, end == "answered")


REGISTER_OPS = st.lists(
    st.builds(
        make_register,
        st.sampled_from(["write", "read"]),
        st.integers(0, 2),
        st.integers(0, 12),
        st.integers(0, 9),
        st.sampled_from(["answered", "over", "open"]),
    ),
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(REGISTER_OPS)
def test_search_agrees_with_brute_force(history: list[Register]) -> None:
    assert (find_violation(history, 0, write_or_read) is None) == by_brute_force(history)


def test_search_gives_up_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_linear, "MOST_STEPS", 3)
    with pytest.raises(UndecidedError, match="5 operations"):
        find_violation([Register("write", value, 0, 10) for value in range(5)], 0, write_or_read)


def op(client: str, kind: str, called_s: float, returned_s: float | None, **more: Any) -> Op:
    answer = more.pop("answer", {})
    returned = FOREVER if returned_s is None else round(returned_s * S)
    more = {"lease_ms": 1_000} | more
    return Op(client, kind, round(called_s * S), returned, None if returned_s is None else answer, **more)


def lost(client: str, kind: str, called_s: float, over_s: float, **more: Any) -> Op:
    """An operation without an answer that cannot take effect after some moment."""
    return replace(op(client, kind, called_s, None, **more), returned_ns=round(over_s * S))


def grant(client: str, called_s: float, returned_s: float, token: int, **more: Any) -> Op:
    return op(client, "acquire", called_s, returned_s, answer={"token": token}, **more)


def refusal(client: str, kind: str, called_s: float, returned_s: float, code: str, **more: Any) -> Op:
    return op(client, kind, called_s, returned_s, answer={"code": code}, **more)


def shown(called_s: float, returned_s: float, owner: str | None, token: int) -> Op:
    answer = {"held": owner is not None, "owner": owner, "token": token}
    return op("x", "inspect", called_s, returned_s, answer=answer)


def is_fine(*history: Op) -> bool:
    return find_violation(history, INITIAL, step, covers) is None


FINE: dict[str, list[Op]] = {
    "tree in turns with a name below it": [
        grant("a", 0, 0.1, 1, resource="t"),
        refusal("b", "acquire", 0.2, 0.3, "held", resource="t/x"),
        refusal("a", "release", 0.4, 0.5, "unknown_resource", token=1, resource="t/x"),
        op("a", "release", 0.6, 0.7, token=1, resource="t"),
        grant("b", 0.8, 0.9, 2, resource="t/x"),
        refusal("a", "release", 1.0, 1.1, "not_holder", token=1, resource="t"),
    ],
    "sessions of a node in turns": [
        grant("n#1", 0, 0.1, 1),
        refusal("n#2", "acquire", 0.2, 0.3, "held"),
        refusal("n#2", "release", 0.4, 0.5, "not_holder", token=1),
        op("n#1", "release", 0.6, 0.7, token=1),
        grant("n#2", 0.8, 0.9, 2),
    ],
    "a token between belongs to another lock": [grant("a", 0, 0.1, 1), grant("b", 2, 2.1, 3)],
    "restored, with a higher token": [
        grant("a", 0, 0.1, 1),
        op("relay", "backup", 0.2, 0.3),
        op("a", "release", 0.4, 0.5, token=1),
        grant("b", 0.6, 0.7, 2),
        op("relay", "restore", 0.8, 0.9),
        refusal("a", "renew", 1, 1.1, "stale_token", token=1),
        refusal("b", "renew", 1, 1.1, "not_holder", token=2),
        grant("c", 1.95, 2.1, 9),
    ],
    "active lease opened again by a restart": [
        grant("a", 0, 0.1, 1),
        op("relay", "restart", 0.8, 0.9),
        op("a", "renew", 1.7, 1.75, token=1),
    ],
    "lease that was over before the restart stays over": [
        grant("a", 0, 0.1, 1),
        op("relay", "restart", 2, 2.1),
        grant("b", 2.2, 2.3, 5),
    ],
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
    "granted before the relay that it was sent to died": [
        lost("a", "acquire", 0, 0.5),
        op("relay", "restart", 0.6, 0.7),
        refusal("b", "acquire", 1.5, 1.6, "held"),
        grant("b", 1.8, 1.9, 2),
    ],
    "sent to a relay that died before it had read it": [
        lost("a", "acquire", 0, 0.5),
        op("relay", "restart", 0.6, 0.7),
        grant("b", 0.8, 0.9, 1),
    ],
    "spent under a request id while another holds it": [
        grant("a", 0, 0.1, 1, request_id="q"),
        op("a", "release", 0.2, 0.3, token=1),
        grant("b", 0.4, 0.5, 2),
        refusal("a", "acquire", 0.6, 1.6, "request_spent", request_id="q"),
        refusal("c", "acquire", 1.3, 1.35, "held"),
    ],
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
    "token of a lost history granted again": [
        grant("a", 0, 0.1, 1),
        op("a", "release", 0.2, 0.3, token=1),
        op("relay", "backup", 0.4, 0.5),
        grant("b", 0.6, 0.7, 2),
        op("relay", "restore", 0.8, 0.9),
        grant("c", 1, 1.1, 2),
    ],
    "renewed with a token of a lost history": [
        op("relay", "backup", 0, 0.1),
        grant("b", 0.2, 0.3, 2),
        op("relay", "restore", 0.4, 0.5),
        op("b", "renew", 0.6, 0.7, token=2),
    ],
    "renewed after a restore with the token of the backup": [
        grant("a", 0, 0.1, 1),
        op("relay", "backup", 0.2, 0.3),
        op("relay", "restore", 0.4, 0.5),
        op("a", "renew", 0.6, 0.7, token=1),
    ],
    "restored lease taken before its end": [
        grant("a", 0, 0.1, 1),
        op("relay", "backup", 0.2, 0.3),
        op("relay", "restore", 0.4, 0.5),
        grant("b", 0.6, 0.7, 9),
    ],
    "lease opened again that was over before the restart": [
        grant("a", 0, 0.1, 1),
        op("relay", "restart", 2, 2.1),
        refusal("b", "acquire", 2.2, 2.3, "held"),
    ],
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
    "granted after the relay that it was sent to died": [
        grant("a", 0, 0.1, 1),
        lost("b", "acquire", 0.2, 0.5),
        op("relay", "restart", 0.6, 0.7),
        refusal("c", "acquire", 2.0, 2.1, "held"),
    ],
    "released after the relay that it was sent to died": [
        grant("a", 0, 0.1, 1),
        lost("a", "release", 0.2, 0.3, token=1),
        shown(0.4, 0.5, "a", 1),
        grant("b", 0.6, 0.7, 2),
    ],
    "granted below a tree that is held": [grant("a", 0, 0.1, 1, resource="t"), grant("b", 0.2, 0.3, 2, resource="t/x")],
    "released under the name of the tree": [
        grant("a", 0, 0.1, 1, resource="t/x"),
        op("a", "release", 0.2, 0.3, token=1, resource="t"),
    ],
    "granted to two sessions of a node": [grant("n#1", 0, 0.1, 1), grant("n#2", 0.2, 0.3, 2)],
    "held by self in another session": [grant("n#1", 0, 0.1, 1), refusal("n#2", "acquire", 0.2, 0.3, "held_by_self")],
    "released by another session": [grant("n#1", 0, 0.1, 1), op("n#2", "release", 0.2, 0.3, token=1)],
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


def simulate(chance: random.Random, length: int, lost_share: float = 0) -> list[Op]:
    """Run a lock in its own time, and tell its operations with calls before and answers after the moment.

    Of the lost ones nobody is told the answer, and half of them never arrive.
    """
    now, owner, token, ends, history = 0, "", 0, 0, []
    for _ in range(length):
        now += chance.choice([20, 100, 400, 1_200]) * MS
        who, kind = chance.choice("abc"), chance.choice(["acquire", "renew", "release", "inspect"])
        before, after = chance.randrange(1, 300) * MS, chance.randrange(1, 300) * MS
        is_lost = kind != "inspect" and chance.random() < lost_share
        held = now < ends
        answer: dict[str, Any] | None = {}
        asked = token
        if is_lost and chance.random() < 0.5:
            answer = None
        elif kind == "acquire" and held:
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
        told = None if is_lost else answer
        history.append(Op(who, kind, max(0, now - before), now + after, told, 1_000, asked))
    return history


def tell_wrongly(chance: random.Random, history: list[Op]) -> list[Op] | None:
    """Return the history with the token of one grant one too low, if there is a grant."""
    grants = [each for each in history if each.answer and set(each.answer) == {"token"}]
    if not grants:
        return None
    wrong = chance.choice(grants)
    assert wrong.answer is not None
    return [changed(each, token=wrong.answer["token"] - 1) if each is wrong else each for each in history]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3]))
def test_history_of_a_real_lock_is_accepted_whatever_overlaps(seed: int, lost_share: float) -> None:
    history = simulate(random.Random(seed), 40, lost_share)
    assert find_violation(history, INITIAL, step, covers) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_history_with_one_grant_told_wrongly_is_found(seed: int) -> None:
    chance = random.Random(seed)
    planted = tell_wrongly(chance, simulate(chance, 40))
    if planted is not None:
        stuck = find_violation(planted, INITIAL, step, covers)
        assert stuck is not None and isinstance(stuck.state, State)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_leaving_out_covered_states_changes_no_verdict(seed: int) -> None:
    chance = random.Random(seed)
    planted = tell_wrongly(chance, simulate(chance, 12, lost_share=0.3))
    if planted is not None:
        slowly = find_violation(planted, INITIAL, step)
        assert (find_violation(planted, INITIAL, step, covers) is None) == (slowly is None)


def test_long_history_with_thousands_of_lost_operations_is_decided() -> None:
    chance = random.Random(7)
    history = simulate(chance, 8_000, lost_share=0.3)
    assert sum(not each.is_certain for each in history) > 1_000
    assert find_violation(history, INITIAL, step, covers) is None
    twice = [*history, replace(history[-1], kind="acquire", answer={"token": 1})]
    assert find_violation(twice, INITIAL, step, covers) is not None
