"""The model of a shared lock: it accepts what may have been, and finds what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.locks_linear import find_violation
from tests.faults.locks_model import Op
from tests.faults.locks_shared_model import INITIAL, covers, step
from tests.faults.test_locks_checker import grant, lost, op, refusal, shown


def share(client: str, called_s: float, returned_s: float, token: int) -> Op:
    return grant(client, called_s, returned_s, token, is_shared=True)


def behind_a_waiter(client: str, called_s: float, returned_s: float, **more: Any) -> Op:
    return op(client, "acquire", called_s, returned_s, answer={"code": "held", "is_waiting": True}, **more)


def is_fine(*history: Op) -> bool:
    return find_violation(history, INITIAL, step, covers) is None


FINE: dict[str, list[Op]] = {
    "two that share, then one alone": [
        share("a", 0, 0.1, 1),
        share("b", 0.2, 0.3, 2),
        refusal("c", "acquire", 0.4, 0.5, "held"),
        op("a", "release", 0.6, 0.65, token=1),
        op("b", "release", 0.7, 0.75, token=2),
        grant("c", 0.8, 0.9, 3),
        refusal("a", "acquire", 1.0, 1.1, "held", is_shared=True),
    ],
    "one alone after the last of two leases": [
        share("a", 0, 0.1, 1),
        share("b", 0.5, 0.6, 2),
        grant("c", 1.4, 1.6, 3),
    ],
    "shared request behind a waiter": [share("a", 0, 0.1, 1), behind_a_waiter("b", 0.2, 0.3, is_shared=True)],
    "shared by an unanswered request": [
        lost("a", "acquire", 0, 0.5, is_shared=True),
        share("b", 0.1, 0.2, 1),
        op("b", "release", 0.3, 0.4, token=1),
        refusal("c", "acquire", 0.6, 0.7, "held"),
    ],
    "both reopened by a restart": [
        share("a", 0, 0.1, 1),
        share("b", 0.2, 0.3, 2),
        op("relay", "restart", 0.8, 0.9),
        refusal("c", "acquire", 1.6, 1.7, "held"),
        op("b", "renew", 1.6, 1.7, token=2),
        grant("c", 2.6, 2.8, 3),
    ],
    "restored under a token that the holder does not know": [
        share("a", 0, 0.1, 1),
        op("relay", "backup", 0.2, 0.3),
        op("a", "release", 0.4, 0.5, token=1),
        op("relay", "restore", 0.6, 0.7),
        refusal("b", "acquire", 0.8, 0.9, "held"),
        refusal("a", "renew", 1.0, 1.1, "stale_token", token=1),
    ],
    "lease that was over at the backup, and active after the restore": [
        share("a", 0, 0.1, 1),
        op("relay", "backup", 1.3, 1.4),
        op("relay", "restore", 1.5, 1.6),
        refusal("a", "acquire", 1.7, 1.8, "held_by_self", is_shared=True),
        refusal("b", "acquire", 1.9, 2.0, "held"),
    ],
}
WRONG: dict[str, list[Op]] = {
    "alone beside one that shares": [share("a", 0, 0.1, 1), grant("b", 0.2, 0.3, 2)],
    "shared beside one that is alone": [grant("a", 0, 0.1, 1), share("b", 0.2, 0.3, 2)],
    "alone before the second of two leases is over": [
        share("a", 0, 0.1, 1),
        share("b", 0.5, 0.6, 2),
        grant("c", 1.2, 1.3, 3),
    ],
    "one token for two that share": [share("a", 0, 0.1, 1), share("b", 0.2, 0.3, 1)],
    "granted twice to one session": [share("a", 0, 0.1, 1), share("a", 0.2, 0.3, 2)],
    "refused beside one that shares, without a waiter": [
        share("a", 0, 0.1, 1),
        refusal("b", "acquire", 0.2, 0.3, "held", is_shared=True),
    ],
    "refused while nothing is held": [refusal("b", "acquire", 0.2, 0.3, "held"), share("a", 0.4, 0.5, 1)],
    "released with the token of another": [
        share("a", 0, 0.1, 1),
        share("b", 0.2, 0.3, 2),
        op("a", "release", 0.4, 0.5, token=2),
    ],
    "shown free beside one that shares": [
        share("a", 0, 0.1, 1),
        share("b", 0.2, 0.3, 2),
        op("a", "release", 0.4, 0.5, token=1),
        shown(0.6, 0.7, None, 2),
    ],
    "lease that a restart cut short": [
        share("a", 0, 0.1, 1),
        op("relay", "restart", 0.8, 0.9),
        grant("b", 1.2, 1.3, 2),
    ],
    "renewed with a token that a restore took away": [
        share("a", 0, 0.1, 1),
        op("relay", "backup", 0.2, 0.3),
        op("relay", "restore", 0.4, 0.5),
        op("a", "renew", 0.6, 0.7, token=1),
    ],
    "lease that a grant had ended, active after a restore": [
        share("a", 0, 0.1, 1),
        share("b", 1.3, 1.4, 2),
        op("relay", "backup", 1.5, 1.6),
        op("relay", "restore", 1.7, 1.8),
        refusal("a", "acquire", 1.9, 2.0, "held_by_self", is_shared=True),
    ],
    "lease that was over at a restart, active after it": [
        share("a", 0, 0.1, 1),
        op("relay", "restart", 1.3, 1.4),
        refusal("a", "acquire", 1.5, 1.6, "held_by_self", is_shared=True),
    ],
}


@pytest.mark.parametrize("name", FINE)
def test_what_may_have_been_is_accepted(name: str) -> None:
    assert is_fine(*FINE[name])


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_have_been_is_found(name: str) -> None:
    assert not is_fine(*WRONG[name])
