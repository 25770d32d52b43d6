"""Fence tags: the relay as a consumer of its own tokens, with a control that shows what they prevent."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.relay.wire.accept_results import Accepted, Answer
from tests.relay.authors import Author
from tests.relay.locks.desk import Desk

KINDS = [10_000, 30_000]


class Writer:
    """A node that locks and writes."""

    def __init__(self, desk: Desk, number: int) -> None:
        self.desk = desk
        self.author = Author(number, desk.clock)

    async def lock(self, **more: Any) -> int:
        return await self.desk.granted(self.author.node, "db", **more)

    async def write(self, kind: int, *fence: str, d: str = "x") -> Answer:
        tags = [("d", d)] + ([("fence", *fence)] if fence else [])
        return await self.desk.core.accept(self.author.raw(kind, *tags))


@pytest.fixture
def alice(desk: Desk) -> Writer:
    return Writer(desk, 1)


@pytest.fixture
def bob(desk: Desk) -> Writer:
    return Writer(desk, 2)


def verdict(answer: Answer) -> str:
    return "accepted" if isinstance(answer, Accepted) else f"{answer.status} {answer.error.code}"


@pytest.mark.parametrize("kind", KINDS)
async def test_holder_writes_with_its_token_as_often_as_it_likes(alice: Writer, kind: int) -> None:
    token = await alice.lock()
    for _ in range(3):
        assert verdict(await alice.write(kind, "db", str(token))) == "accepted"


@pytest.mark.parametrize("kind", KINDS)
async def test_former_holder_is_refused_and_without_a_fence_it_overwrites(
    desk: Desk, alice: Writer, bob: Writer, kind: int
) -> None:
    old = await alice.lock(lease_ms=5_000)
    desk.clock.advance(5)
    new = await bob.lock()
    assert verdict(await bob.write(kind, "db", str(new))) == "accepted"
    assert verdict(await alice.write(kind, "db", str(old))) == "409 fence_stale"
    assert verdict(await alice.write(kind)) == "accepted"  # the control: an unfenced write of the past gets through


async def test_expired_lease_cannot_write_with_its_old_token_even_if_nobody_took_it(desk: Desk, alice: Writer) -> None:
    token = await alice.lock(lease_ms=5_000)
    desk.clock.advance(4.999)
    assert verdict(await alice.write(30_000, "db", str(token))) == "accepted"
    desk.clock.advance(0.001)
    assert verdict(await alice.write(30_000, "db", str(token))) == "409 fence_stale"


async def test_released_lock_writes_no_more(alice: Writer, desk: Desk) -> None:
    token = await alice.lock()
    await desk.release(alice.author.node, token, "db")
    assert verdict(await alice.write(30_000, "db", str(token))) == "409 fence_stale"


async def test_token_that_was_never_granted_is_unknown(alice: Writer, bob: Writer) -> None:
    assert verdict(await alice.write(30_000, "db", "1")) == "409 fence_unknown"
    token = await alice.lock()
    assert verdict(await alice.write(30_000, "db", str(token + 1))) == "409 fence_unknown"
    assert verdict(await bob.write(30_000, "db", str(token))) == "409 fence_unknown"


async def test_strict_fence_admits_one_write_per_grant_and_coordinate(desk: Desk, alice: Writer) -> None:
    token = await alice.lock()
    strict = ("db", str(token), "strict")
    assert verdict(await alice.write(30_000, *strict)) == "accepted"
    assert verdict(await alice.write(30_000, *strict)) == "409 fence_stale"
    assert verdict(await alice.write(30_000, *strict, d="other")) == "accepted"
    assert verdict(await alice.write(30_000, "db", str(token))) == "accepted"
    await desk.release(alice.author.node, token, "db")
    token = await alice.lock()
    assert verdict(await alice.write(30_000, "db", str(token), "strict")) == "accepted"


async def test_strict_fence_sees_writes_that_were_not_strict(alice: Writer) -> None:
    token = await alice.lock()
    assert verdict(await alice.write(30_000, "db", str(token))) == "accepted"
    assert verdict(await alice.write(30_000, "db", str(token), "strict")) == "409 fence_stale"


async def test_two_strict_writes_of_one_list_are_one_too_many(alice: Writer) -> None:
    token = await alice.lock()
    events = [alice.author.raw(30_000, ("d", "x"), ("fence", "db", str(token), "strict")) for _ in range(2)]
    answers = await alice.desk.core.accept_many(events)
    assert [verdict(answer) for answer in answers] == ["accepted", "409 fence_stale"]


async def test_retry_of_a_fenced_event_gets_its_answer_after_the_lease(desk: Desk, alice: Writer) -> None:
    token = await alice.lock(lease_ms=5_000)
    event = alice.author.raw(30_000, ("d", "x"), ("fence", "db", str(token), "strict"))
    first = await desk.core.accept(event)
    desk.clock.advance(60)
    again = await desk.core.accept(event)
    assert isinstance(first, Accepted) and isinstance(again, Accepted)
    assert (again.seq, again.duplicate) == (first.seq, True)


async def test_fence_of_another_mesh_does_not_count(desk: Desk, alice: Writer) -> None:
    token = await alice.lock()
    await desk.core.administration.create_mesh(alice.author.node, "lab")
    tags = [("mesh", "lab"), ("d", "x"), ("fence", "db", str(token))]
    assert verdict(await desk.core.accept(alice.author.raw(30_000, *tags))) == "409 fence_unknown"


async def test_fence_on_an_event_that_replaces_nothing_is_malformed(alice: Writer) -> None:
    token = await alice.lock()
    answer = await alice.desk.core.accept(alice.author.raw(1, ("fence", "db", str(token))))
    assert verdict(answer) == "400 tag_malformed"
