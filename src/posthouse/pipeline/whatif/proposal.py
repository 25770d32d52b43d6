"""The rules that history is judged by: a config.json as a bus reads it, and an access-rules.json.

config.json may also hold `budget`, which a bus takes as arguments: {maxHops, ttlMs, callBudget, cycleRule}. What a
proposal does not name (budget, access) stays as it was decided; the sections of reliability that it does not name have
their defaults, as in a bus whose config.json does not name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from posthouse.model.access import AccessRules, parse_rules
from posthouse.model.budget import BudgetCeiling, CycleRule
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import BUS_CALL_BUDGET, BUS_MAX_HOPS, BUS_TTL_MS
from posthouse.model.reliability import Reliability, merge_reliability


class BudgetProposal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The bounds of budgets, as Bus takes them."""

    max_hops: int = BUS_MAX_HOPS
    ttl_ms: int = BUS_TTL_MS
    call_budget: int = BUS_CALL_BUDGET
    cycle_rule: CycleRule = "chain"

    @property
    def ceiling(self) -> BudgetCeiling:
        return BudgetCeiling(max_hops=self.max_hops, ttl_ms=self.ttl_ms, call_budget=self.call_budget)


@dataclass(frozen=True)
class Proposal:
    """Everything that decides; None leaves a question as it was decided."""

    reliability: Reliability
    rules: AccessRules | None = None
    budget: BudgetProposal | None = None


class _File(msgspec.Struct):
    budget: BudgetProposal | None = None


def read_proposal(config: Path | None, rules: Path | None) -> Proposal:
    """Read the files, or raise what is wrong with them."""
    reliability, budget = Reliability(), None
    if config is not None:
        data = _read(config)
        reliability = merge_reliability(reliability, data)
        budget = _read_budget(data)
    return Proposal(reliability, None if rules is None else parse_rules(_read(rules)), budget)


def _read_budget(data: bytes) -> BudgetProposal | None:
    try:
        budget = msgspec.json.decode(data, type=_File).budget
        if budget is not None:
            _ = budget.ceiling  # its bounds are checked when it is made
    except (msgspec.MsgspecError, PosthouseError) as fault:
        raise error("reliability_invalid", reason=str(fault)) from fault
    return budget


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as failure:
        raise error("config_unreadable", path=str(path), reason=failure.strerror or str(failure)) from failure
