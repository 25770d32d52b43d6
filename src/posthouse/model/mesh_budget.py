"""The budget a message carries across the mesh, in its ["budget", JSON] tag.

The cycle rule does not travel: across the mesh a dialogue is no loop, so only hops, calls and time bound it.
On the wire the names are snake_case, as everywhere outside bus files.
"""

from __future__ import annotations

import msgspec

from posthouse.model.budget import Budget, BudgetCeiling
from posthouse.model.errors import error
from posthouse.model.limits import INT64_MAX, MESH_CALL_BUDGET, MESH_MAX_HOPS, QUEUE_TTL_S
from posthouse.model.strict_json import refuse_duplicate_keys

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
