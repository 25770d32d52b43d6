"""Budgets: how far a message may still travel, how long, and how many calls it may cause; on the bus and on the mesh.

A publish costs one hop and one call and appends the endpoint to the chain; what a handler publishes inherits the
budget of the message it handles. Budgets only shrink. Across the mesh (tag ["budget", JSON], snake_case) the chain
does not travel: a dialogue is no loop there, so only hops, calls and time bound it. Texts of refusals are a
contract.
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
from posthouse.model.strict_json import refuse_duplicate_keys
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


#: what a message gets that carries no budget: the ttl is the queue's, after which it is gone anyway
MESH_CEILING = BudgetCeiling(max_hops=MESH_MAX_HOPS, ttl_ms=QUEUE_TTL_S * 1000, call_budget=MESH_CALL_BUDGET)


class MeshBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left of a message's allowance when it travels between hosts."""

    hop_count: int
    max_hops: int
    call_budget_remaining: int
    #: unix milliseconds when it expires
    ttl: int

    def __post_init__(self) -> None:
        for name, least in (("hop_count", 0), ("max_hops", 1), ("call_budget_remaining", 0), ("ttl", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= INT64_MAX:
                raise error("value_invalid", name=f"budget.{name}", reason=f"{value!r} is below {least}")


_DECODER = msgspec.json.Decoder(MeshBudget)
_ENCODER = msgspec.json.Encoder()


def encode_mesh_budget(budget: MeshBudget) -> str:
    """Return the text of a budget tag."""
    return _ENCODER.encode(budget).decode()


def decode_mesh_budget(text: str) -> MeshBudget:
    """Return the budget of a tag, or raise value_invalid or what is wrong with its JSON."""
    refuse_duplicate_keys(text)
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as fault:
        raise error("value_invalid", name="budget", reason=str(fault)) from fault


def effective_mesh_budget(
    now_ms: int,
    inherited: MeshBudget | None = None,
    given: MeshBudget | None = None,
    ceiling: BudgetCeiling = MESH_CEILING,
) -> MeshBudget:
    """Return the narrowest of ceiling, inherited and given; used hops are the most of them."""
    present = [budget for budget in (inherited, given) if budget is not None]
    return MeshBudget(
        hop_count=max([b.hop_count for b in present], default=0),
        max_hops=min([ceiling.max_hops, *(b.max_hops for b in present)]),
        call_budget_remaining=min([ceiling.call_budget, *(b.call_budget_remaining for b in present)]),
        ttl=min([now_ms + ceiling.ttl_ms, *(b.ttl for b in present)]),
    )


def check_mesh_budget(budget: MeshBudget, now_ms: int) -> str | None:
    """Return why the message may not travel on, or None; same order and texts as on the bus, without cycles."""
    if budget.hop_count >= budget.max_hops:
        return f"max hops exceeded ({budget.hop_count}/{budget.max_hops})"
    if now_ms > budget.ttl:
        return "message expired (TTL)"
    if budget.call_budget_remaining <= 0:
        return "call budget exhausted"
    return None


def charge_mesh_budget(budget: MeshBudget) -> MeshBudget:
    """Return the budget after one more hop; call it only when check_mesh_budget allowed it."""
    return msgspec.structs.replace(
        budget,
        hop_count=budget.hop_count + 1,
        call_budget_remaining=budget.call_budget_remaining - 1,
    )


def to_bus_budget(budget: MeshBudget) -> Budget:
    """Return the budget with which the bridge publishes inbound mail: the chain begins on this host."""
    return Budget(
        hop_count=budget.hop_count,
        max_hops=budget.max_hops,
        ancestor_chain=(),
        ttl=budget.ttl,
        call_budget_remaining=budget.call_budget_remaining,
    )


def to_mesh_budget(budget: Budget) -> MeshBudget:
    """Return the budget with which the bridge sends bus mail out: the chain stays on this host."""
    return MeshBudget(
        hop_count=budget.hop_count,
        max_hops=budget.max_hops,
        call_budget_remaining=budget.call_budget_remaining,
        ttl=budget.ttl,
    )
