"""Budgets: how far a message may still travel, how long, and how many calls it may cause; on the bus and on the mesh.

A publish costs one hop and one call and appends the endpoint to the chain; a message that a handler publishes inherits
the budget of the message it handles. Budgets only shrink. A return (an answer to a message that is not itself a return)
costs nothing and is never refused here. Messages that a return causes are charged, so a line has at most 2 x max_hops
messages. The chain does not travel across the mesh (tag ["budget", JSON], snake_case). The texts of refusals are a
contract.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from posthouse.model.errors import error
from posthouse.model.limits import BUDGET_CALLS, BUDGET_MAX_HOPS, BUDGET_TTL_MS, INT64_MAX
from posthouse.model.strict_json import convert_or_refuse, refuse_duplicate_keys
from posthouse.model.subjects import takes_answers, validate_subject

#: "hops": hops, calls and ttl bound a line; "chain": a line also reaches each endpoint at most once, returns excepted
CycleRule = Literal["chain", "hops"]


class Budget(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
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

    max_hops: int = BUDGET_MAX_HOPS
    ttl_ms: int = BUDGET_TTL_MS
    call_budget: int = BUDGET_CALLS

    def __post_init__(self) -> None:
        for name, minimum in (("max_hops", 1), ("ttl_ms", 0), ("call_budget", 0)):
            _check_integer(name, getattr(self, name), minimum)

    def with_ttl(self, ttl_ms: int) -> BudgetCeiling:
        """Return the bounds of a message that lives no longer than `ttl_ms`."""
        return msgspec.structs.replace(self, ttl_ms=min(self.ttl_ms, ttl_ms))

    def fresh(self, now_ms: int) -> Budget:
        """Return the budget of a message that inherits nothing."""
        return Budget(
            hop_count=0,
            max_hops=self.max_hops,
            ancestor_chain=(),
            ttl=now_ms + self.ttl_ms,
            call_budget_remaining=self.call_budget,
        )


class Cause(NamedTuple):
    """A message that a program handles while it sends another one, as far as the rule of returns needs it."""

    id: str
    #: where the message came from: a subject on the bus, a node id on the mesh
    sender: str
    #: where it wants its answer, if not at the sender
    reply_to: str | None
    is_return: bool


def find_answered(destination: str, causes: Iterable[Cause]) -> Cause | None:
    """Return the message that a message to `destination` answers as a return, or None if the message is charged.

    `causes` are the message that is being handled and the one that the sender names. If one of them is a return, the
    new message is charged: otherwise two agents could answer each other without end.
    """
    answered = None
    for cause in causes:
        if cause.is_return:
            return None
        if answered is None and (destination in (cause.sender, cause.reply_to) or _is_marked(destination, cause)):
            answered = cause
    return answered


def _is_marked(destination: str, cause: Cause) -> bool:
    """Return True if the destination is the cause's reply address plus a token for the kind of reply, such as
    partial."""
    reply_to = cause.reply_to
    return reply_to is not None and takes_answers(reply_to) and destination.rpartition(".")[0] == reply_to


def effective_budget(
    ceiling: BudgetCeiling,
    now_ms: int,
    inherited: Budget | None = None,
    given: GivenBudget | Budget | None = None,
    *,
    is_return: bool = False,
) -> Budget:
    """Return the narrowest combination of ceiling, inherited and given, field by field.

    Remaining amounts are the minimum; used amounts (hops, chain) are the maximum: otherwise a given hop count of 0
    would reopen a loop. A return does not inherit the ttl: an answer may take longer than its question was valid.
    """
    if is_return and inherited is not None:
        inherited = msgspec.structs.replace(inherited, ttl=INT64_MAX)
    budget = ceiling.fresh(now_ms)
    for other in (inherited, given):
        if other is not None:
            budget = _narrow(budget, other)
    return budget


def check_budget(
    budget: Budget, endpoint: str, now_ms: int, cycle_rule: CycleRule = "hops", *, is_return: bool = False
) -> str | None:
    """Return why the budget does not allow the endpoint to be reached, or None if it does."""
    if is_return:
        return None
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


def charge_budget(budget: Budget, endpoint: str, *, is_return: bool = False) -> Budget:
    """Return the budget after the endpoint is reached; call it only when check_budget returned None."""
    cost = 0 if is_return else 1
    return msgspec.structs.replace(
        budget,
        hop_count=budget.hop_count + cost,
        ancestor_chain=(*budget.ancestor_chain, endpoint),
        call_budget_remaining=budget.call_budget_remaining - cost,
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


#: The ceiling of every host, and so the budget of a message that carries none. Its ttl is that of the relay's queue.
MESH_CEILING = BudgetCeiling()


class MeshBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The allowance that a message has left when it travels between hosts."""

    hop_count: int
    max_hops: int
    call_budget_remaining: int
    #: unix milliseconds when it expires
    ttl: int
    #: True: the message is a return, so an answer to it is charged
    is_return: bool = False

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
    now_ms: int, inherited: MeshBudget | None = None, given: MeshBudget | None = None, *, is_return: bool = False
) -> MeshBudget:
    """Return the narrowest combination of ceiling, inherited and given, by the rule of the bus."""
    budget = effective_budget(
        MESH_CEILING,
        now_ms,
        None if inherited is None else to_bus_budget(inherited),
        None if given is None else to_bus_budget(given),
        is_return=is_return,
    )
    return to_mesh_budget(budget, is_return=is_return)


def first_mesh_budget(now_ms: int) -> MeshBudget:
    """Return the budget of a received message that carries none: the first of a line, which has used one hop."""
    return charge_mesh_budget(effective_mesh_budget(now_ms))


def check_mesh_budget(budget: MeshBudget, now_ms: int) -> str | None:
    """Return why the message must not travel on, or None; same order and texts as on the bus, without cycles."""
    return None if budget.is_return else _exhausted(budget, now_ms, None)


def charge_mesh_budget(budget: MeshBudget) -> MeshBudget:
    """Return the budget after one more hop, which a return does not pay; check_mesh_budget must have returned None."""
    if budget.is_return:
        return budget
    return msgspec.structs.replace(
        budget,
        hop_count=budget.hop_count + 1,
        call_budget_remaining=budget.call_budget_remaining - 1,
    )


def to_bus_budget(budget: MeshBudget) -> Budget:
    """Return the budget with which the bridge publishes an inbound message: the chain begins on this host.

    Whether it is a return is not part of it: on the bus `inReplyTo` of the envelope says that.
    """
    return Budget(
        hop_count=budget.hop_count,
        max_hops=budget.max_hops,
        ancestor_chain=(),
        ttl=budget.ttl,
        call_budget_remaining=budget.call_budget_remaining,
    )


def to_mesh_budget(budget: Budget, *, is_return: bool = False) -> MeshBudget:
    """Return the budget with which the bridge sends a message of the bus: the chain stays on this host."""
    return MeshBudget(
        hop_count=budget.hop_count,
        max_hops=budget.max_hops,
        call_budget_remaining=budget.call_budget_remaining,
        ttl=budget.ttl,
        is_return=is_return,
    )
