"""The budget of a bus message: how far it may still travel, how long, and how many calls it may cause.

A publish costs one hop and one call and appends the endpoint to the chain; what a handler publishes inherits the budget
of the message it handles. Budgets only shrink: whoever gives one narrows it. Texts of refusals are a contract.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from posthouse.model.errors import error
from posthouse.model.limits import BUS_CALL_BUDGET, BUS_MAX_HOPS, BUS_TTL_MS, INT64_MAX
from posthouse.model.subjects import validate_subject

#: "chain": an endpoint is reached once; "hops": a dialogue is no cycle and only hops, calls and ttl bound it
CycleRule = Literal["chain", "hops"]


class Budget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is left of a message's allowance; validated however it is made."""

    hop_count: int
    max_hops: int
    #: endpoints this line of messages has reached, oldest first
    ancestor_chain: tuple[str, ...]
    #: unix milliseconds when it expires
    ttl: int
    call_budget_remaining: int

    def __post_init__(self) -> None:
        hops, most, ttl, calls = self.hop_count, self.max_hops, self.ttl, self.call_budget_remaining
        # Every message makes several: the common case is decided without a call per field.
        if not (
            (type(hops) is type(most) is type(ttl) is type(calls) is int)
            and (0 <= hops <= INT64_MAX and 1 <= most <= INT64_MAX)
            and (0 <= ttl <= INT64_MAX and 0 <= calls <= INT64_MAX)
        ):
            _check_bounds(self)
        for endpoint in self.ancestor_chain:
            validate_subject(endpoint)


class GivenBudget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a publisher asks for; fields it leaves out keep the inherited or configured value."""

    hop_count: int | None = None
    max_hops: int | None = None
    ancestor_chain: tuple[str, ...] | None = None
    ttl: int | None = None
    call_budget_remaining: int | None = None

    def __post_init__(self) -> None:
        _check_bounds(self)
        for endpoint in self.ancestor_chain or ():
            validate_subject(endpoint)


class BudgetCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's bounds; no publisher can exceed them."""

    max_hops: int = BUS_MAX_HOPS
    ttl_ms: int = BUS_TTL_MS
    call_budget: int = BUS_CALL_BUDGET

    def __post_init__(self) -> None:
        for name, least in (("max_hops", 1), ("ttl_ms", 0), ("call_budget", 0)):
            _check_integer(name, getattr(self, name), least)

    def fresh(self, now_ms: int) -> Budget:
        """Return the budget of a message that inherits nothing."""
        return Budget(
            hop_count=0,
            max_hops=self.max_hops,
            ancestor_chain=(),
            ttl=now_ms + self.ttl_ms,
            call_budget_remaining=self.call_budget,
        )


def effective_budget(
    ceiling: BudgetCeiling,
    now_ms: int,
    inherited: Budget | None = None,
    given: GivenBudget | Budget | None = None,
) -> Budget:
    """Return the field-wise narrowest of ceiling, inherited and given.

    What is left is the minimum; what is used up (hops, chain) is the maximum, else a given hop count of 0
    would set a loop free.
    """
    budget = ceiling.fresh(now_ms)
    for other in (inherited, given):
        if other is not None:
            budget = _narrow(budget, other)
    return budget


def check_budget(budget: Budget, endpoint: str, now_ms: int, cycle_rule: CycleRule = "chain") -> str | None:
    """Return why the budget does not allow reaching the endpoint, or None when it does."""
    if budget.hop_count >= budget.max_hops:
        return f"max hops exceeded ({budget.hop_count}/{budget.max_hops})"
    if cycle_rule == "chain" and endpoint in budget.ancestor_chain:
        return f"cycle detected: {endpoint} already in chain"
    if now_ms > budget.ttl:
        return "message expired (TTL)"
    if budget.call_budget_remaining <= 0:
        return "call budget exhausted"
    return None


def charge_budget(budget: Budget, endpoint: str) -> Budget:
    """Return the budget after reaching the endpoint; call it only when check_budget allowed it."""
    return msgspec.structs.replace(
        budget,
        hop_count=budget.hop_count + 1,
        ancestor_chain=(*budget.ancestor_chain, endpoint),
        call_budget_remaining=budget.call_budget_remaining - 1,
    )


def is_expired(budget: Budget, now_ms: int) -> bool:
    """Tell whether a message's time is over; in its last millisecond it is still delivered."""
    return now_ms > budget.ttl


def _narrow(budget: Budget, other: GivenBudget | Budget) -> Budget:
    chain = other.ancestor_chain or ()
    return Budget(
        hop_count=max(budget.hop_count, other.hop_count or 0),
        max_hops=_least(budget.max_hops, other.max_hops),
        ancestor_chain=budget.ancestor_chain + tuple(e for e in chain if e not in budget.ancestor_chain),
        ttl=_least(budget.ttl, other.ttl),
        call_budget_remaining=_least(budget.call_budget_remaining, other.call_budget_remaining),
    )


def _least(own: int, other: int | None) -> int:
    return own if other is None else min(own, other)


def _check_bounds(budget: Budget | GivenBudget) -> None:
    partial = isinstance(budget, GivenBudget)
    for name, least in (("hop_count", 0), ("max_hops", 1), ("ttl", 0), ("call_budget_remaining", 0)):
        value = getattr(budget, name)
        if not (partial and value is None):
            _check_integer(name, value, least)


def _check_integer(name: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value <= INT64_MAX:
        raise error("value_invalid", name=name, reason=f"{value!r} is not an integer of at least {least}")
