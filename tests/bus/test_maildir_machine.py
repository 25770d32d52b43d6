"""Random histories of a bus against an oracle of its mailbox rules."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from posthouse import Bus
from posthouse.model.clock import FakeClock
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import BUDGET_TTL_MS
from posthouse.model.reliability import Reliability
from tests.bus.listening import Recorder
from tests.bus.mailboxes import Mailbox
from tests.bus.oracle import Letter, Oracle
from tests.bus.waiting import eventually

ROOM = 4
LITERAL = ["a.one", "a.two", "b.one"]
ENDPOINTS = [*LITERAL, "p.>", "p.deep.>"]
TARGETS = ["a.one", "a.two", "b.one", "a.*", ">", "*.one", "p.x", "p.deep.y", "nobody"]
LIMITS = msgspec.convert(
    {
        "rateLimit": {"enabled": False},
        "circuitBreaker": {"enabled": False},
        "backpressure": {"maxMailboxSize": ROOM},
    },
    Reliability,
)


class MailboxMachine(RuleBasedStateMachine):
    """One process that registers, publishes, handles, fails, acknowledges and restarts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="bus-machine-"))
        self.clock = FakeClock()
        self.oracle = Oracle(ROOM)
        self.published = 0
        #: endpoints this life of the process has registered: only those it serves
        self.mine: set[str] = set()
        self.bus: Bus

    def run(self, call: Any) -> Any:
        return self.runner.run(asyncio.wait_for(call, 30) if asyncio.iscoroutine(call) else call)

    @initialize()
    def open(self) -> None:
        self.bus = Bus(self.folder / "bus", clock=self.clock, reliability=LIMITS)
        self.run(self.bus.__aenter__())

    @rule(endpoint=st.sampled_from(ENDPOINTS))
    def register(self, endpoint: str) -> None:
        self.run(self.bus.register_endpoint(endpoint))
        self.oracle.waiting.setdefault(endpoint, [])
        self.mine.add(endpoint)

    @rule(endpoint=st.sampled_from(ENDPOINTS), force=st.booleans())
    def unregister(self, endpoint: str, force: bool) -> None:
        mail = self.oracle.waiting.get(endpoint)
        try:
            self.run(self.bus.unregister_endpoint(endpoint, force=force))
        except PosthouseError as refused:
            assert refused.code == ("endpoint_unknown" if mail is None else "endpoint_has_mail")
            assert mail is None or (mail and not force)
            return
        assert mail is not None
        assert force or not mail
        self.oracle.dead.extend(self.oracle.waiting.pop(endpoint))
        self.mine.discard(endpoint)

    @rule(subject=st.sampled_from(TARGETS))
    def publish(self, subject: str) -> None:
        self.published += 1
        result = self.run(self.bus.publish(subject, self.published, from_="machine"))
        expires_ms = self.clock.wall_ns() // 1_000_000 + BUDGET_TTL_MS
        taken, refused = self.oracle.publish(subject, self.published, result.message_id, expires_ms)
        assert (result.delivered_to, len(result.rejected)) == (taken, refused)
        assert {str(entry.reason) for entry in result.rejected} <= {"backpressure"}

    @rule(endpoint=st.sampled_from([*LITERAL, ">"]), fails=st.booleans())
    def handle(self, endpoint: str, fails: bool) -> None:
        served = [name for name in self.oracle.waiting if endpoint in (name, ">") and name in self.mine]
        for name in served:
            self.oracle.expire(name, self.now_ms)
        expected = [letter for name in served for letter in self.oracle.take_all(name)]
        got = self.run(self._drain(endpoint, served, fails))
        for subject in {letter.subject for letter in expected}:
            in_order = [envelope.payload for envelope in got if envelope.subject == subject]
            assert in_order == [letter.payload for letter in expected if letter.subject == subject]
        assert len(got) == len(expected)
        if fails:
            self.oracle.dead.extend(expected)

    async def _drain(self, pattern: str, served: list[str], fails: bool) -> list[Envelope]:
        got = Recorder(fails=fails)
        unsubscribe = await self.bus.subscribe(pattern, got)
        for name in served:
            box = Mailbox(self.folder / "bus", name)
            await eventually(lambda box=box: box.depth == 0)  # type: ignore[misc]
        await unsubscribe()
        return got.envelopes

    @precondition(lambda self: any(self.oracle.waiting.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        endpoint = data.draw(st.sampled_from(sorted(name for name, mail in self.oracle.waiting.items() if mail)))
        letter = data.draw(st.sampled_from(self.oracle.waiting[endpoint]))
        self.run(self.bus.ack(endpoint, letter.id))
        self.oracle.waiting[endpoint].remove(letter)

    @precondition(lambda self: self.oracle.dead)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        letter: Letter = data.draw(st.sampled_from(self.oracle.dead))
        result = self.run(self.bus.requeue(letter.subject, letter.id))
        buried = list(self.oracle.dead)
        expires_ms = self.now_ms + BUDGET_TTL_MS
        taken, refused = self.oracle.publish(letter.subject, letter.payload, result.message_id, expires_ms)
        assert (result.delivered_to, len(result.rejected)) == (taken, refused)
        self.oracle.dead = buried
        if taken:
            self.oracle.dead.remove(letter)

    @rule(seconds=st.sampled_from([1, 600, BUDGET_TTL_MS // 1_000 + 1]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.run(self.bus.close())
        self.mine.clear()
        self.open()

    @rule()
    def rebuild(self) -> None:
        self.run(self.bus.rebuild_index())

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ns() // 1_000_000

    @invariant()
    def mailboxes_hold_what_the_oracle_says(self) -> None:
        if not hasattr(self, "bus"):
            return
        for endpoint in self.oracle.waiting:
            self.oracle.expire(endpoint, self.now_ms)
            inbox = self.run(self.bus.read_inbox(endpoint, 100))
            expected = self.oracle.waiting[endpoint]
            assert [(e.id, e.payload, e.subject) for e in inbox] == [(x.id, x.payload, x.subject) for x in expected]
        registered = {endpoint.subject for endpoint in self.run(self.bus.list_endpoints())}
        assert registered == set(self.oracle.waiting)

    @invariant()
    def dead_letters_are_those_of_the_oracle(self) -> None:
        if not hasattr(self, "bus"):
            return
        found = sorted(letter.envelope.payload for letter in self.run(self.bus.dead_letters()))
        assert found == sorted(letter.payload for letter in self.oracle.dead)

    def teardown(self) -> None:
        if hasattr(self, "bus"):
            self.run(self.bus.close())
        self.runner.close()
        shutil.rmtree(self.folder)


TestMailboxMachine = MailboxMachine.TestCase
TestMailboxMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
