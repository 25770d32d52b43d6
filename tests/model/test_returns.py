"""The rule of returns: answers are free, and still every line of messages ends. Proved over random teams."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from posthouse.model.budget import (
    Budget,
    BudgetCeiling,
    Cause,
    CycleRule,
    charge_budget,
    check_budget,
    effective_budget,
    find_answered,
)

NOW = 1_700_000_000_000
MAX_HOPS = BudgetCeiling().max_hops
TEAMS = 2_000


@dataclass(frozen=True)
class Sent:
    """A message of the model, as its receiver sees it."""

    to: str
    cause: Cause
    budget: Budget


class Team:
    """Agents that send one message for each that they receive, by the rules of the bus and the whim of `choice`."""

    find_answered = staticmethod(find_answered)

    def __init__(self, seed: int, ceiling: BudgetCeiling, cycle_rule: CycleRule = "hops") -> None:
        self.choice = random.Random(seed)
        self.ceiling = ceiling
        self.cycle_rule = cycle_rule
        self.agents = [f"agent.n{number}" for number in range(self.choice.randint(1, 6))]
        #: how often this team answers instead of writing to any agent
        self.politeness = self.choice.random()
        #: how often an agent names an older message, beside the one that it handles
        self.forgery = self.choice.choice((0.0, 0.3, 1.0))
        self.line: list[Sent] = []

    def run(self, at_most: int) -> list[Sent]:
        """Follow one line of messages until the budget refuses the next, or until it has `at_most` messages."""
        message = self.send("user", self.choice.choice(self.agents), [])
        while message is not None and len(self.line) < at_most:
            message = self.send(message.to, self.destination(message), self.causes(message))
        return self.line

    def destination(self, received: Sent) -> str:
        answers = [received.cause.sender, received.cause.reply_to or received.cause.sender]
        return self.choice.choice(answers if self.choice.random() < self.politeness else self.agents)

    def causes(self, received: Sent) -> list[Sent]:
        """Return the named message, if the agent names one, and the handled one."""
        named = [self.choice.choice(self.line)] if self.choice.random() < self.forgery else []
        return [*named, received]

    def send(self, sender: str, to: str, causes: list[Sent]) -> Sent | None:
        is_return = self.find_answered(to, [each.cause for each in causes]) is not None
        budget: Budget | None = None
        for each in causes:
            budget = effective_budget(self.ceiling, NOW, budget, each.budget)
        spendable = effective_budget(self.ceiling, NOW, budget, is_return=is_return)
        if check_budget(spendable, to, NOW, self.cycle_rule, is_return=is_return) is not None:
            return None
        reply_to = self.choice.choice((None, *self.agents))
        cause = Cause(f"m{len(self.line)}", sender, reply_to, is_return)
        sent = Sent(to, cause, charge_budget(spendable, to, is_return=is_return))
        self.line.append(sent)
        return sent


def test_a_line_of_messages_has_at_most_twice_max_hops_in_2000_random_teams() -> None:
    longest = 0
    for seed in range(TEAMS):
        hops = random.Random(seed).randint(1, MAX_HOPS)
        line = Team(seed, BudgetCeiling(max_hops=hops)).run(at_most=1_000)
        assert len(line) <= 2 * hops, seed
        counts = [sent.budget.hop_count for sent in line]
        assert counts == sorted(counts), seed  # no message lowers the hops of its line
        assert all(not (a.cause.is_return and b.cause.is_return) for a, b in pairwise(line)), seed
        longest = max(longest, len(line))
    assert longest == 2 * MAX_HOPS  # the bound is reached, so the model follows lines to their end


def test_calls_bound_a_line_in_the_same_way() -> None:
    for seed in range(TEAMS // 10):
        calls = random.Random(seed).randint(1, 12)
        line = Team(seed, BudgetCeiling(max_hops=1_000, call_budget=calls)).run(at_most=1_000)
        assert len(line) <= 2 * calls, seed


def test_under_the_chain_rule_a_line_returns_but_does_not_come_back_otherwise() -> None:
    for seed in range(TEAMS // 10):
        line = Team(seed, BudgetCeiling(), "chain").run(at_most=1_000)
        charged = [sent.to for sent in line if not sent.cause.is_return]
        assert len(set(charged)) == len(charged), seed


class NaiveTeam(Team):
    """A team of the same agents, on a bus on which every answer is free."""

    @staticmethod
    def find_answered(destination: str, causes: Iterable[Cause]) -> Cause | None:
        return find_answered(destination, [each._replace(is_return=False) for each in causes])


def test_if_every_answer_were_free_a_line_would_not_end() -> None:
    lengths = [len(NaiveTeam(seed, BudgetCeiling()).run(at_most=1_000)) for seed in range(100)]
    assert max(lengths) == 1_000


def cause(sender: str = "user", reply_to: str | None = None, *, is_return: bool = False, name: str = "m") -> Cause:
    return Cause(name, sender, reply_to, is_return)


def test_a_return_goes_to_the_sender_or_to_reply_to() -> None:
    asked = cause("user", "user.inbox")
    assert find_answered("user", [asked]) is asked
    assert find_answered("user.inbox", [asked]) is asked
    assert find_answered("other", [asked]) is None
    assert find_answered("user", []) is None


def test_an_answer_to_a_return_is_charged() -> None:
    assert find_answered("user", [cause("user", is_return=True)]) is None


def test_naming_an_old_message_while_a_return_is_handled_frees_nothing() -> None:
    assert find_answered("user", [cause("user", name="old"), cause("worker", is_return=True)]) is None


def test_the_named_message_is_the_one_that_is_answered() -> None:
    named, handled = cause("user", name="named"), cause("user", name="handled")
    assert find_answered("user", [named, handled]) is named
    assert find_answered("worker", [named, cause("worker", name="handled")]) == cause("worker", name="handled")


def test_a_return_costs_nothing_and_gets_a_fresh_ttl() -> None:
    ceiling = BudgetCeiling()
    spent = Budget(
        hop_count=MAX_HOPS, max_hops=MAX_HOPS, ancestor_chain=("user", "a"), ttl=NOW - 1, call_budget_remaining=0
    )
    budget = effective_budget(ceiling, NOW, spent, is_return=True)
    assert check_budget(budget, "user", NOW, "chain", is_return=True) is None
    returned = charge_budget(budget, "user", is_return=True)
    assert (returned.hop_count, returned.call_budget_remaining) == (MAX_HOPS, 0)
    assert returned.ttl == NOW + ceiling.ttl_ms
    assert returned.ancestor_chain == ("user", "a", "user")
    caused = effective_budget(ceiling, NOW, returned)
    assert check_budget(caused, "b", NOW) == f"max hops exceeded ({MAX_HOPS}/{MAX_HOPS})"
