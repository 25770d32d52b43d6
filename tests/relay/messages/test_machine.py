"""Whatever happens to deliveries, in any order: states, counters and queues are those of a simple model."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posthouse.model.clock import FakeClock
from posthouse.model.event import encode_event
from posthouse.model.rate import Rate
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.settings import DeliverySettings
from tests.relay.authors import Author
from tests.relay.messages.checked import findings

QUEUE_MAX, TTL_S = 4, 100
ADMIN, READER = Author(1), Author(2)
SENDERS = (Author(3), Author(4))
FREE = Rate(10**6, 10**6)

STEPS = st.one_of(
    st.tuples(st.just("post"), st.integers(0, 1)),
    st.tuples(st.just("confirm"), st.integers(0, 9)),
    st.tuples(st.just("reject"), st.integers(0, 9)),
    st.tuples(st.just("timeout"), st.integers(0, 9)),
    st.tuples(st.just("purge"), st.integers(0, 9)),
    st.tuples(st.just("requeue"), st.integers(0, 9)),
    st.tuples(st.just("block"), st.integers(0, 1)),
    st.tuples(st.just("unblock"), st.integers(0, 1)),
    st.tuples(st.just("age"), st.integers(1, 60)),
    st.tuples(st.just("sweep"), st.just(0)),
)


class Model:
    """What should be true, kept as plainly as possible."""

    def __init__(self) -> None:
        #: id -> [sender, state, opened at, timeouts]
        self.rows: dict[str, list[Any]] = {}
        #: ids of open rows, in the order of the queue
        self.queue: list[str] = []
        self.blocked: set[int] = set()
        self.now = 0

    def close(self, id_: str, state: str) -> None:
        self.rows[id_][1] = state
        if id_ in self.queue:
            self.queue.remove(id_)

    def expire(self) -> None:
        for id_ in list(self.queue):
            if self.is_old(id_):
                self.close(id_, "expired")

    def is_old(self, id_: str) -> bool:
        return bool(self.now - self.rows[id_][2] > TTL_S)


class Machine:
    """The relay and the model, taken through the same steps."""

    def __init__(self, core: RelayEngine, clock: FakeClock) -> None:
        self.core = core
        self.clock = clock
        self.model = Model()
        self.posted: list[str] = []

    async def step(self, name: str, number: int) -> None:
        if name in ("confirm", "reject", "timeout", "purge", "requeue"):
            if not self.posted:
                return
            await getattr(self, name)(self.posted[number % len(self.posted)])
        else:
            await getattr(self, name)(number)

    async def post(self, sender: int) -> None:
        model, event = self.model, SENDERS[sender].message(READER.node, len(self.posted))
        answer = await self.core.accept(encode_event(event))
        if len(model.queue) >= QUEUE_MAX:
            model.expire()
        if len(model.queue) >= QUEUE_MAX:
            assert answer.status == 429
            return
        assert answer.status == 201
        self.posted.append(event.id)
        is_blocked = sender in model.blocked
        model.rows[event.id] = [sender, "blocked" if is_blocked else "queued", model.now, 0]
        if not is_blocked:
            model.queue.append(event.id)

    async def confirm(self, id_: str) -> None:
        sender, state = self.model.rows[id_][:2]
        event = READER.event(1001, ("p", SENDERS[sender].node), ("e", id_))
        answer = await self.core.accept(encode_event(event))
        counts = state in ("rejected", "dead") or (id_ in self.model.queue and not self.model.is_old(id_))
        assert answer.status == (201 if counts else 409)
        if counts:
            self.model.close(id_, "confirmed")

    async def reject(self, id_: str) -> None:
        before_ns = TTL_S * 10**9
        _state, closed = await self.core.store.submit(
            lambda unit: unit.deliveries.reject("main", READER.node, id_, "no", unit.now_ns - before_ns)
        )
        counts = id_ in self.model.queue and not self.model.is_old(id_)
        assert bool(closed.seqs) == counts
        if counts:
            self.model.close(id_, "rejected")

    async def timeout(self, id_: str) -> None:
        seq = (await self.core.store.known([id_]))[id_]
        closed = await self.core.store.submit(
            lambda unit: unit.deliveries.count_attempts(
                "main", READER.node, [seq], ReaderSession.attempt_bounds, is_timeout=True
            )
        )
        row = self.model.rows[id_]
        if id_ in self.model.queue:
            row[3] += 1
        is_dead = id_ in self.model.queue and row[3] >= 5
        assert bool(closed.seqs) == is_dead
        if is_dead:
            self.model.close(id_, "dead")

    async def purge(self, id_: str) -> None:
        purged = await self.core.queues.purge(ADMIN.node, "main", READER.node, [id_])
        assert (purged == [id_]) == (id_ in self.model.queue)
        if purged:
            self.model.close(id_, "purged")

    async def requeue(self, id_: str) -> None:
        reopened, no_room = await self.core.queues.requeue(ADMIN.node, "main", READER.node, [id_])
        row = self.model.rows[id_]
        if row[1] not in ("rejected", "dead"):
            assert not reopened and not no_room
        elif len(self.model.queue) >= QUEUE_MAX:
            assert no_room == [id_]
        else:
            assert reopened == [id_]
            row[1:] = ["queued", self.model.now, 0]
            self.model.queue.append(id_)

    async def block(self, sender: int) -> None:
        await self.core.participation.block(READER.node, "main", SENDERS[sender].node)
        if sender not in self.model.blocked:
            for id_ in [id_ for id_ in self.model.queue if self.model.rows[id_][0] == sender]:
                self.model.close(id_, "blocked")
        self.model.blocked.add(sender)

    async def unblock(self, sender: int) -> None:
        await self.core.participation.unblock(READER.node, "main", SENDERS[sender].node)
        self.model.blocked.discard(sender)

    async def age(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    async def sweep(self, _number: int) -> None:
        await self.core.sweeper.sweep()
        self.model.expire()

    async def compare(self) -> None:
        """Compare everything that can be seen."""
        reads = self.core.store.deliveries
        since_ns, now_ns = self.clock.wall_ns() - TTL_S * 10**9, self.clock.wall_ns()
        rows = await reads.queue_rows("main", READER.node, ("queued", "sent"), (0, ""), 100)
        assert [row["id"] for row in rows] == self.model.queue
        page = await reads.page("main", READER.node, 0, since_ns, now_ns, 50)
        assert page.size == sum(not self.model.is_old(id_) for id_ in self.model.queue)
        for id_, (_sender, state, _at, _timeouts) in self.model.rows.items():
            found = await reads.message(id_, READER.node)
            assert found is not None and [each["state"] for each in found["deliveries"]] == [state]


@pytest.mark.sqlite
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_deliveries_follow_the_model(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_run(Path(directory) / "relay", steps))
        assert findings(Path(directory) / "relay") == []


async def _run(data_dir: Path, steps: list[tuple[str, int]]) -> None:
    clock = FakeClock()
    deliveries = DeliverySettings(queue_max=QUEUE_MAX, queue_ttl_s=TTL_S)
    chosen = EngineSettings(data_dir, Author(99).node, admins=(ADMIN.node,), event_rate=FREE, deliveries=deliveries)
    core = await RelayEngine.start(chosen, clock)
    try:
        machine = Machine(core, clock)
        for name, number in steps:
            await machine.step(name, number)
        await machine.compare()
    finally:
        await core.close()
