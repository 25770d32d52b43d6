"""The guarantees of locks over random histories, compared with an oracle written from the spec alone."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.lock_api import LockGrant
from posthouse.relay.wire.lock_operations import Freed, LockAnswer
from tests.relay.locks.desk import Desk, node, open_desk

LEASES_MS = [1_000, 1_500, 4_000]
STEP = st.tuples(
    st.sampled_from(["acquire", "acquire", "renew", "release", "pass", "pass", "step", "restart"]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 3),
)


@dataclass
class Oracle:
    """One resource as the spec describes it; times are milliseconds of the relay's boot clock."""

    holder: str | None = None
    ends_ms: int = 0
    lease_ms: int = 0
    last_token: int = 0
    #: every grant as it was answered, in order
    tokens: list[int] = field(default_factory=list)

    def is_held(self, now_ms: int) -> bool:
        return self.holder is not None and now_ms < self.ends_ms

    def acquire(self, owner: str, lease_ms: int, now_ms: int, answer: LockAnswer) -> None:
        if self.is_held(now_ms):
            assert isinstance(answer, PosthouseError)
            assert answer.code == ("held_by_self" if self.holder == owner else "held")
            return
        assert isinstance(answer, LockGrant) and answer.owner == owner
        assert answer.token > self.last_token
        self.holder, self.ends_ms, self.lease_ms, self.last_token = owner, now_ms + lease_ms, lease_ms, answer.token
        self.tokens.append(answer.token)

    def renew(self, owner: str, token: int, lease_ms: int, now_ms: int, answer: LockAnswer) -> None:
        if not (self.is_held(now_ms) and (owner, token) == (self.holder, self.last_token)):
            assert isinstance(answer, PosthouseError)
            return
        assert isinstance(answer, LockGrant) and answer.token == token
        self.ends_ms, self.lease_ms = now_ms + lease_ms, lease_ms

    def release(self, owner: str, token: int, now_ms: int, answer: LockAnswer) -> None:
        if not (self.is_held(now_ms) and (owner, token) == (self.holder, self.last_token)):
            assert isinstance(answer, PosthouseError)
            return
        assert isinstance(answer, Freed)
        self.holder = None

    def restart(self, now_ms: int) -> None:
        if self.is_held(now_ms):
            self.ends_ms = now_ms + self.lease_ms


async def live(folder: Path, steps: list[tuple[str, int, int, int]]) -> Oracle:
    clock, oracle = FakeClock(), Oracle()
    pending = list(steps)
    while True:
        async with open_desk(folder, clock) as desk:
            oracle.restart(clock.boot_ns() // 10**6)
            while pending and pending[0][0] != "restart":
                await take(desk, oracle, *pending.pop(0))
        if not pending:
            return oracle
        pending.pop(0)


async def take(desk: Desk, oracle: Oracle, op: str, who: int, lease: int, back: int) -> None:
    owner, lease_ms, now_ms = node(who + 1), LEASES_MS[lease], desk.clock.boot_ns() // 10**6
    token = max(1, oracle.last_token + 1 - back)
    if op == "pass":
        desk.clock.advance((0.3, 0.999, 1, 2)[back])
    elif op == "step":
        desk.clock.step_wall((-7_200, -3_600, 3_600, 7_200)[back])
    elif op == "acquire":
        oracle.acquire(owner, lease_ms, now_ms, await desk.acquire(owner, lease_ms=lease_ms))
    elif op == "renew":
        oracle.renew(owner, token, lease_ms, now_ms, await desk.renew(owner, token, lease_ms=lease_ms))
    else:
        oracle.release(owner, token, now_ms, await desk.release(owner, token))
    now_ms = desk.clock.boot_ns() // 10**6
    shown = await desk.inspect()
    assert (shown.held, shown.owner) == (oracle.is_held(now_ms), oracle.holder if oracle.is_held(now_ms) else None)
    assert shown.token == oracle.last_token


@pytest.mark.sqlite
@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=30))
def test_every_answer_is_what_the_spec_says(steps: list[tuple[str, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        oracle = asyncio.run(live(Path(folder), steps))
    assert oracle.tokens == sorted(set(oracle.tokens))


async def test_another_acquires_after_the_lease_and_never_before(desk: Desk) -> None:
    await desk.granted(node(1), lease_ms=1_000)
    for _ in range(999):
        desk.clock.advance(0.001)
        assert isinstance(await desk.acquire(node(2)), PosthouseError)
    desk.clock.advance(0.001)
    assert await desk.granted(node(2)) == 2


async def test_control_believing_in_a_lock_without_a_fence_overlaps(desk: Desk) -> None:
    """Both nodes got a grant and neither got a denial: only the fencing tokens tell them apart."""
    first = await desk.acquire(node(1), lease_ms=1_000)
    desk.clock.advance(1)  # the first node pauses: a stopped process, a lost packet
    second = await desk.acquire(node(2), lease_ms=1_000)
    assert isinstance(first, LockGrant) and isinstance(second, LockGrant)
    assert second.token > first.token
