"""The order of a connection, of a list, and of the events that listeners get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import encode_event
from posthouse.relay.accept import path
from posthouse.relay.accept.submission import Answered
from posthouse.relay.engine import RelayEngine
from posthouse.relay.wire.accept_results import Accepted, Answer, Committed
from tests.relay.accept.answers import codes
from tests.relay.authors import ALICE, BOB, CAROL, Author

WAIT_S = 30


class Connection:
    """A submitter that collects its answers."""

    def __init__(self, core: RelayEngine, expected: int) -> None:
        self.answers: list[Answer] = []
        self.done = asyncio.Event()
        self._expected = expected
        self.submitter = core.open_submitter(self._take)

    def _take(self, answered: Sequence[Answered]) -> None:
        self.answers += [each.answer for each in answered]
        if len(self.answers) >= self._expected:
            self.done.set()

    async def wait(self) -> dict[str | None, Answer]:
        await asyncio.wait_for(self.done.wait(), WAIT_S)
        return {answer.id: answer for answer in self.answers}


def seqs_in_order(answers: dict[str | None, Answer], ids: list[str]) -> list[int]:
    found = [answers[id_] for id_ in ids]
    return [answer.seq for answer in found if isinstance(answer, Accepted) and answer.seq is not None]


async def test_events_of_a_connection_keep_their_order_whatever_their_checks_take(core: RelayEngine) -> None:
    chance = random.Random(5)
    authors = [ALICE, BOB, CAROL]
    connections = [Connection(core, 60) for _ in authors]
    sent: list[list[str]] = [[] for _ in authors]
    for _ in range(60):
        for number, author in enumerate(authors):
            size = chance.choice([0, 10, 60_000])  # hashing and verifying the long ones takes many times longer
            event = author.event(content="x" * size)
            sent[number].append(event.id)
            connections[number].submitter.submit([encode_event(event)])
        await asyncio.sleep(0)
    for number, connection in enumerate(connections):
        seqs = seqs_in_order(await connection.wait(), sent[number])
        assert len(seqs) == 60
        assert seqs == sorted(seqs)


async def test_listeners_hear_of_events_in_seq_order_without_a_gap(core: RelayEngine) -> None:
    published: list[Committed] = []
    core.listen(published.extend)
    connections = [Connection(core, 50) for _ in range(4)]
    authors = [Author(number + 10) for number in range(4)]
    for _ in range(50):
        for connection, author in zip(connections, authors, strict=True):
            connection.submitter.submit([author.raw()])
        await asyncio.sleep(0)
    for connection in connections:
        await connection.wait()
    seqs = [item.seq for item in published]
    assert seqs == list(range(seqs[0] or 0, (seqs[0] or 0) + 200))


async def test_ephemeral_event_is_not_published_before_what_was_sent_before_it(core: RelayEngine) -> None:
    published: list[int] = []
    core.listen(lambda events: published.extend(item.event.kind for item in events))
    connection = Connection(core, 3)
    for kind in (1, 20_101, 2):
        connection.submitter.submit([ALICE.raw(kind)])
    await connection.wait()
    assert published == [1, 20_101, 2]


async def test_refused_event_holds_back_later_ones_of_its_destination_only(core: RelayEngine) -> None:
    bad = ALICE.raw(1, ("t", "x"), ("mesh", "nowhere"))
    later = ALICE.raw(2, ("t", "x"), ("mesh", "nowhere"))
    events = [ALICE.raw(1, ("t", "x")), bad, ALICE.raw(1, ("t", "x")), later, ALICE.raw(1, ("t", "y"))]
    assert codes(await core.accept_many(events)) == ["201", "mesh_unknown", "201", "mesh_unknown", "201"]


async def test_event_behind_a_refused_one_is_held_back_and_goes_through_alone(
    core: RelayEngine, clock: FakeClock
) -> None:
    too_early = ALICE.raw(1, ("t", "x"), created_at_ns=clock.wall_ns() + 10**13)
    behind, beside = ALICE.raw(1, ("t", "x")), ALICE.raw(1, ("t", "z"))
    answers = await core.accept_many([beside, too_early, behind, ALICE.raw(1)])
    assert codes(answers) == ["201", "event_created_at_ahead", "earlier_refused", "201"]
    assert answers[2].status == 409
    assert codes([await core.accept(behind)]) == ["201"]


async def test_held_back_event_holds_back_those_behind_it(core: RelayEngine, clock: FakeClock) -> None:
    too_early = ALICE.raw(1, ("p", BOB.node), created_at_ns=clock.wall_ns() + 10**13)
    behind = [ALICE.raw(1, ("p", BOB.node)) for _ in range(3)]
    answers = await core.accept_many([too_early, *behind])
    assert codes(answers) == ["event_created_at_ahead"] + ["earlier_refused"] * 3


async def test_known_event_holds_nothing_back(core: RelayEngine) -> None:
    raw = ALICE.raw(1, ("t", "x"))
    await core.accept(raw)
    assert codes(await core.accept_many([raw, ALICE.raw(1, ("t", "x"))])) == ["200", "201"]


async def test_versions_of_one_line_are_held_back_by_a_refused_one(core: RelayEngine, clock: FakeClock) -> None:
    early = ALICE.raw(30_000, ("d", "a"), created_at_ns=clock.wall_ns() + 10**13)
    answers = await core.accept_many([early, ALICE.raw(30_000, ("d", "b")), ALICE.raw(30_000, ("d", "a"))])
    assert codes(answers) == ["event_created_at_ahead", "201", "earlier_refused"]


async def test_refusal_on_a_connection_holds_back_nothing_of_another_submission(
    core: RelayEngine, clock: FakeClock
) -> None:
    connection = Connection(core, 2)
    connection.submitter.submit([ALICE.raw(1, ("t", "x"), created_at_ns=clock.wall_ns() + 10**13)])
    connection.submitter.submit([ALICE.raw(1, ("t", "x"))])
    await connection.wait()
    assert sorted(codes(connection.answers)) == ["201", "event_created_at_ahead"]


async def test_submission_beyond_the_bound_is_refused_before_anything_is_taken(
    core: RelayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path, "MAX_EVENTS", 10)
    connection = Connection(core, 10)
    connection.submitter.submit([ALICE.raw() for _ in range(10)])
    with pytest.raises(PosthouseError) as caught:
        connection.submitter.submit([ALICE.raw()])
    assert caught.value.code == "store_busy"
    assert connection.submitter.in_flight == 10
    await connection.wait()
    assert (core.statistics()["accept"]["events_on_the_way"], connection.submitter.in_flight) == (0, 0)
    assert codes([await core.accept(ALICE.raw())]) == ["201"]


async def test_closed_lane_hears_nothing_and_its_events_are_accepted(core: RelayEngine) -> None:
    connection = Connection(core, 1)
    event = ALICE.event()
    connection.submitter.submit([encode_event(event)])
    connection.submitter.close()
    await core.accept(BOB.raw())
    await core.accept(BOB.raw())
    assert connection.answers == []
    assert await core.store.known([event.id])
