"""Budgets: how far a message may still travel, how long, and how many calls it may cause; on the bus and on the mesh.

A publish costs one hop and one call and appends the endpoint to the chain; a message that a handler publishes
inherits the budget of the message it handles. Budgets only shrink. The chain does not travel across the mesh (tag
["budget", JSON], snake_case): a dialogue is no loop there, so only hops, calls and time bound it. The texts of
refusals are a contract.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from posthouse.model.errors import error
from posthouse.model.limits import (
    BUS_CALL_BUDGET,
    BUS_MAX_HOPS,
    BUS_TTL_MS,
    INT64_MAX,
    MESH_CALL_BUDGET,
    MESH_MAX_HOPS,
    QUEUE_TTL_S,
)
from posthouse.model.strict_json import convert_or_refuse, refuse_duplicate_keys
from posthouse.model.subjects import validate_subject

#: "chain": each endpoint is reached at most once; "hops": a dialogue is allowed, bounded by hops, calls and ttl only
CycleRule = Literal["chain", "hops"]


class Budget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The allowance that a message has left on the bus; its bounds are checked whenever one is made."""

    hop_count: int
    max_hops: int
    #: endpoints that this chain of messages has reached, oldest first
    ancestor_chain: tuple[str, ...]
    #: unix milliseconds when it expires
    ttl: int
    call_budget_remaining: int

    def __post_init__(self) -> None:
        hops, max_hops, ttl, calls = self.hop_count, self.max_hops, self.ttl, self.call_budget_remaining
        # Every message makes several budgets: the valid case needs no call per field.
        if not (
            (type(hops) is type(max_hops) is type(ttl) is type(calls) is int)
            and (0 <= hops <= INT64_MAX and 1 <= max_hops <= INT64_MAX)
            and (0 <= ttl <= INT64_MAX and 0 <= calls <= INT64_MAX)
        ):
            _check_bounds(self)
        for endpoint in self.ancestor_chain:
            validate_subject(endpoint)


class GivenBudget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The budget that a publisher asks for; an absent field keeps the inherited or configured value."""

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
    """The operator's upper bounds, which no publisher can exceed."""

    max_hops: int = BUS_MAX_HOPS
    ttl_ms: int = BUS_TTL_MS
    call_budget: int = BUS_CALL_BUDGET

    def __post_init__(self) -> None:
        for name, minimum in (("max_hops", 1), ("ttl_ms", 0), ("call_budget", 0)):
            _check_integer(name, getattr(self, name), minimum)

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
    """Return the narrowest combination of ceiling, inherited and given, field by field.

    Remaining amounts are the minimum; used amounts (hops, chain) are the maximum: otherwise a given hop count of 0
    would reopen a loop.
    """
    budget = ceiling.fresh(now_ms)
    for other in (inherited, given):
        if other is not None:
            budget = _narrow(budget, other)
    return budget


def check_budget(budget: Budget, endpoint: str, now_ms: int, cycle_rule: CycleRule = "chain") -> str | None:
    """Return why the budget does not allow the endpoint to be reached, or None if it does."""
    is_cycle = cycle_rule == "chain" and endpoint in budget.ancestor_chain
    return _exhausted(budget, now_ms, f"cycle detected: {endpoint} already in chain" if is_cycle else None)


def _exhausted(budget: Budget | MeshBudget, now_ms: int, cycle: str | None) -> str | None:
    if budget.hop_count >= budget.max_hops:
        return f"max hops exceeded ({budget.hop_count}/{budget.max_hops})"
    if cycle is not None:
        return cycle
    if now_ms > budget.ttl:
        return "message expired (TTL)"
    if budget.call_budget_remaining <= 0:
        return "call budget exhausted"
    return None


def charge_budget(budget: Budget, endpoint: str) -> Budget:
    """Return the budget after the endpoint is reached; call it only when check_budget returned None."""
    return msgspec.structs.replace(
        budget,
        hop_count=budget.hop_count + 1,
        ancestor_chain=(*budget.ancestor_chain, endpoint),
        call_budget_remaining=budget.call_budget_remaining - 1,
    )


def is_expired(budget: Budget, now_ms: int) -> bool:
    """Return True if the message has expired; in its last millisecond it is still delivered."""
    return now_ms > budget.ttl


def _narrow(budget: Budget, other: GivenBudget | Budget) -> Budget:
    chain = other.ancestor_chain or ()
    return Budget(
        hop_count=max(budget.hop_count, other.hop_count or 0),
        max_hops=_min(budget.max_hops, other.max_hops),
        ancestor_chain=budget.ancestor_chain + tuple(e for e in chain if e not in budget.ancestor_chain),
        ttl=_min(budget.ttl, other.ttl),
        call_budget_remaining=_min(budget.call_budget_remaining, other.call_budget_remaining),
    )


def _min(own: int, other: int | None) -> int:
    return own if other is None else min(own, other)


def _check_bounds(budget: Budget | GivenBudget) -> None:
    partial = isinstance(budget, GivenBudget)
    for name, minimum in _MINIMUMS.items():
        value = getattr(budget, name)
        if not (partial and value is None):
            _check_integer(name, value, minimum)


_MINIMUMS = {"hop_count": 0, "max_hops": 1, "ttl": 0, "call_budget_remaining": 0}


def _check_integer(name: str, value: Any, minimum: int) -> None:
    if type(value) is not int or not minimum <= value <= INT64_MAX:
        raise error("value_invalid", name=name, reason=f"{value!r} is not an integer of at least {minimum}")


#: The budget of a message that carries none; the ttl is that of the queue, which deletes the message then anyway.
MESH_CEILING = BudgetCeiling(max_hops=MESH_MAX_HOPS, ttl_ms=QUEUE_TTL_S * 1000, call_budget=MESH_CALL_BUDGET)


class MeshBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The allowance that a message has left when it travels between hosts."""

    hop_count: int
    max_hops: int
    call_budget_remaining: int
    #: unix milliseconds when it expires
    ttl: int

    def __post_init__(self) -> None:
        for name, minimum in _MINIMUMS.items():
            _check_integer(f"budget.{name}", getattr(self, name), minimum)


_DECODER = msgspec.json.Decoder(MeshBudget)
_ENCODER = msgspec.json.Encoder()


def encode_mesh_budget(budget: MeshBudget) -> str:
    """Return the text of a budget tag."""
    return _ENCODER.encode(budget).decode()


def decode_mesh_budget(text: str) -> MeshBudget:
    """Return the budget of a tag, or raise value_invalid or the code of the fault in its JSON."""
    refuse_duplicate_keys(text)
    return convert_or_refuse("budget", _DECODER.decode, text)


def effective_mesh_budget(
    now_ms: int,
    inherited: MeshBudget | None = None,
    given: MeshBudget | None = None,
    ceiling: BudgetCeiling = MESH_CEILING,
) -> MeshBudget:
    """Return the narrowest combination of ceiling, inherited and given, by the rule of the bus."""
    return to_mesh_budget(
        effective_budget(
            ceiling,
            now_ms,
            None if inherited is None else to_bus_budget(inherited),
            None if given is None else to_bus_budget(given),
        )
    )


def check_mesh_budget(budget: MeshBudget, now_ms: int) -> str | None:
    """Return why the message may not travel on, or None; same order and texts as on the bus, without cycles."""
    return _exhausted(budget, now_ms, None)


def charge_mesh_budget(budget: MeshBudget) -> MeshBudget:
    """Return the budget after one more hop; call it only when check_mesh_budget returned None."""
    return msgspec.structs.replace(
        budget,
        hop_count=budget.hop_count + 1,
        call_budget_remaining=budget.call_budget_remaining - 1,
    )


def to_bus_budget(budget: MeshBudget) -> Budget:
    """Return the budget with which the bridge publishes an inbound message: the chain begins on this host."""
    return Budget(
        hop_count=budget.hop_count,
        max_hops=budget.max_hops,
        ancestor_chain=(),
        ttl=budget.ttl,
        call_budget_remaining=budget.call_budget_remaining,
    )


def to_mesh_budget(budget: Budget) -> MeshBudget:
    """Return the budget with which the bridge sends a message of the bus: the chain stays on this host."""
    return MeshBudget(
        hop_count=budget.hop_count,
        max_hops=budget.max_hops,
        call_budget_remaining=budget.call_budget_remaining,
        ttl=budget.ttl,
    )
