"""Sessions, trees, sharing and waiting over random histories, compared with an oracle written from the spec alone."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.model.lock_api import LockGrant
from posthouse.relay.wire.lock_operations import Acquire, LockAnswer, Release
from tests.faults.campaign import rounds
from tests.relay.locks.desk import Desk, node, open_desk

NAMES = ["a", "a/b", "a/b/c", "a/x", "b", "ab"]
Step = tuple[str, int, list[str], tuple[bool, bool, bool]]


def history(seed: int) -> list[Step]:
    """Return steps in which requests meet often; random ones of hypothesis are too short for that."""
    chance, steps = random.Random(seed), list[Step]()
    for _ in range(40):
        if chance.random() < 0.6:
            names = chance.sample(NAMES, chance.choice([1, 1, 1, 2, 3]))
            flags = (chance.random() < 0.35, chance.random() < 0.5, chance.random() < 0.8)
            steps.append(("ask", chance.randrange(3), names, flags))
        else:
            op = chance.choice(["release", "release", "release", "release", "leave", "expire"])
            steps.append((op, chance.randrange(10), [], (False, False, False)))
    return steps


@dataclass(eq=False)
class Request:
    """A request as the spec sees it."""

    holder: int
    names: tuple[str, ...]
    is_tree: bool
    is_shared: bool
    may_wait: bool
    outcome: str = "waiting"
    is_gone: bool = False

    def overlaps(self, other: Request) -> bool:
        return any(
            one == two or (self.is_tree and two.startswith(f"{one}/")) or (other.is_tree and one.startswith(f"{two}/"))
            for one in self.names
            for two in other.names
        )

    def conflicts(self, other: Request) -> bool:
        return self.overlaps(other) and self.holder != other.holder and not (self.is_shared and other.is_shared)

    def waits_behind(self, earlier: Request) -> bool:
        return self.conflicts(earlier) or (self.holder == earlier.holder and self.overlaps(earlier))


@dataclass
class Oracle:
    """All requests that hold or wait, in order of arrival."""

    held: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)

    def ask(self, request: Request) -> None:
        self._decide(request, self.waiting)
        if request.outcome == "held" and request.may_wait:
            request.outcome = "waiting"
            self.waiting.append(request)
        self.settle()  # a grant refuses what the same session waits for

    def _decide(self, request: Request, earlier: list[Request]) -> None:
        if any(request.overlaps(each) and request.holder == each.holder for each in self.held):
            request.outcome = "held_by_self"
        elif any(request.conflicts(each) for each in self.held) or any(request.waits_behind(each) for each in earlier):
            request.outcome = "held"
        else:
            request.outcome = "granted"
            self.held.append(request)

    def settle(self) -> None:
        """Serve the queue until nothing changes: a request waits for holders and for those still before it."""
        is_changed = True
        while is_changed:
            is_changed = False
            queue, self.waiting = self.waiting, []
            for request in queue:
                self._decide(request, self.waiting)
                if request.outcome == "held":
                    request.outcome = "waiting"
                    self.waiting.append(request)
                else:
                    is_changed = True


async def live(folder: Path, steps: list[Step]) -> None:
    oracle, answers = Oracle(), dict[Request, asyncio.Future[LockAnswer]]()
    async with open_desk(folder) as desk:
        for op, number, names, flags in steps:
            if op == "ask":
                await ask(desk, oracle, answers, Request(number, disjoint(names, flags[0]), *flags))
            else:
                await end(desk, oracle, answers, op, number)
            await desk.inspect()
            for request, answer in answers.items():
                assert shown(answer) == request.outcome, (request, answer)
        assert desk.locks.waiters == len(oracle.waiting)


def disjoint(names: list[str], is_tree: bool) -> tuple[str, ...]:
    kept: list[str] = []
    for name in names:
        if not is_tree or not any(name.startswith(f"{each}/") or each.startswith(f"{name}/") for each in kept):
            kept.append(name)
    return tuple(kept)


def shown(answer: asyncio.Future[LockAnswer]) -> str:
    if not answer.done():
        return "waiting"
    value = answer.result()
    return value.code if isinstance(value, PosthouseError) else "granted"


async def ask(desk: Desk, oracle: Oracle, answers: dict[Request, asyncio.Future[LockAnswer]], request: Request) -> None:
    oracle.ask(request)
    first, *also = request.names
    asked = Acquire(
        first,
        600_000,
        session=f"s{request.holder // 2}",  # sessions 0 and 1 are of one node
        mode="shared" if request.is_shared else "exclusive",
        tree=request.is_tree,
        also=tuple(also),
        wait_ms=600_000 if request.may_wait else 0,
    )
    answers[request] = desk.locks.ask(node(1 + request.holder % 2), asked, lambda: request.is_gone)


async def end(
    desk: Desk, oracle: Oracle, answers: dict[Request, asyncio.Future[LockAnswer]], op: str, number: int
) -> None:
    """Release a lock, let a waiter leave, or let every lease run out; then the queue moves."""
    if op == "release" and oracle.held:
        request = oracle.held.pop(number % len(oracle.held))
        grant = answers.pop(request).result()
        assert isinstance(grant, LockGrant)
        await desk.locks.ask(grant.owner, Release(grant.resource, grant.token, session=grant.session, also=grant.also))
    elif op == "leave" and oracle.waiting:
        request = oracle.waiting.pop(number % len(oracle.waiting))
        answers.pop(request)
        request.is_gone = True
        desk.locks._waiters._look()
    elif op == "expire":
        for request in oracle.held:
            answers.pop(request)
        oracle.held.clear()
        desk.clock.advance(600)
        desk.locks._waiters._look()
    oracle.settle()


@pytest.mark.sqlite
@pytest.mark.faults
def test_every_request_is_granted_refused_or_waits_as_the_spec_says(tmp_path: Path) -> None:
    for seed in range(rounds(sample=8, full=2_000)):
        asyncio.run(live(tmp_path / f"{seed}", history(seed)))
