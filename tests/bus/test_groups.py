"""Several processes and handlers on one endpoint: bus.db decides which process serves, and only the dead lose mail."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus, Envelope
from posthouse.bus import serving
from posthouse.bus.data_directory import Instance, is_alive
from posthouse.bus.running import RUNNING, RunGate, RunningHandler
from posthouse.bus.settling import EndMessage
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError
from tests.bus.agent import Agent, ChildError
from tests.bus.house import House
from tests.bus.limits import fail_until_open, reasons, reliability
from tests.bus.listening import Recorder
from tests.bus.test_journal import of_type
from tests.bus.waiting import DEADLINE_S, eventually


async def worker(house: House, behaviour: str = "record", **options: Any) -> Agent:
    """Start a process that serves a.b as one of the group "workers"."""
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    await agent.ask("subscribe", pattern="a.b", behaviour=behaviour, **({"group": "workers"} | options))
    return agent


async def publisher(house: House) -> Bus:
    bus = await house.bus(clock=system_clock(), reliability=reliability())
    await bus.register_endpoint("a.b")
    return bus


async def test_processes_of_a_group_share_the_messages_of_an_endpoint(house: House) -> None:
    bus = await publisher(house)
    workers = [await worker(house) for _ in range(2)]
    for number in range(40):
        await bus.publish("a.b", number, from_="c")
    await eventually(lambda: sum(len(agent.handled()) for agent in workers) >= 40)
    handled = [number for agent in workers for number in agent.handled()]
    assert sorted(handled) == list(range(40)), "each message is handled by one of them, once"
    assert all(agent.handled() == sorted(agent.handled()) for agent in workers), "started in order"


async def test_second_process_of_a_group_works_while_the_first_is_busy(house: House) -> None:
    bus = await publisher(house)
    busy = await worker(house, "hold")
    await bus.publish("a.b", "long", from_="c")
    await busy.wait_handled(1)
    other = await worker(house)
    await bus.publish("a.b", "short", from_="c")
    assert await other.wait_handled(1) == ["short"]
    assert busy.handled() == ["long"]


async def test_concurrency_lets_one_process_handle_several_messages_at_once(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    held = Recorder(holds=True)
    await bus.subscribe("a.b", held, concurrency=3)
    for number in range(5):
        await bus.publish("a.b", number, from_="c")
    assert await held.wait(3) == [0, 1, 2]
    await asyncio.sleep(0)
    assert len(held.ids) == 3


async def test_killed_process_of_a_group_loses_its_message_to_another_within_a_second(house: House) -> None:
    bus = await publisher(house)
    dying = await worker(house, "hold")
    await bus.publish("a.b", "precious", from_="c")
    await dying.wait_handled(1)
    other = await worker(house)
    await dying.kill()
    assert await other.wait_handled(1) == ["precious"]
    (redelivered,) = of_type(house.root, "bus.redelivered")
    assert redelivered.decoded_body()["attempt"] == 1


async def test_file_of_an_ended_message_goes_when_its_process_of_a_group_is_killed(house: House) -> None:
    bus = await publisher(house)
    dying = await worker(house, "hold")
    await bus.publish("a.b", "done", from_="c")
    await dying.wait_handled(1)
    other = await worker(house)
    await dying.ask("die_at_end")
    dying.post("let_go")
    await eventually(lambda: dying.process.returncode is not None)
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    assert other.handled() == []
    assert len(of_type(house.root, "bus.handled")) == 1
    assert of_type(house.root, "bus.redelivered") == []


async def test_rescan_of_a_group_removes_files_of_ended_messages_and_no_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gave back the messages of a dead process was killed too."""
    bus = await publisher(house)
    await worker(house, "hold")
    held = (await bus.publish("a.b", "held", from_="c")).message_id
    await eventually(lambda: house.mailbox("a.b").cur)
    got = Recorder()
    await bus.subscribe("a.b", got, group="workers")
    with monkeypatch.context() as killed:
        killed.setattr(EndMessage, "on_committed", lambda _end: None)
        await bus.publish("a.b", "done", from_="c")
        await got.wait(1)
        await eventually(lambda: of_type(house.root, "bus.handled"))
    assert len(house.mailbox("a.b").cur) == 2
    bus.session.servers.rescan()
    await eventually(lambda: house.mailbox("a.b").cur == [held])


async def test_stopped_process_keeps_its_message(house: House) -> None:
    bus = await publisher(house)
    stopped = await worker(house, "hold")
    await bus.publish("a.b", "mine", from_="c")
    await stopped.wait_handled(1)
    other = await worker(house)
    os.kill(stopped.process.pid, signal.SIGSTOP)
    try:
        await bus.publish("a.b", "next", from_="c")
        assert await other.wait_handled(1) == ["next"]
        await bus.sweep()
        assert house.mailbox("a.b").cur != []
        assert of_type(house.root, "bus.redelivered") == []
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)
    await stopped.ask("let_go")
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    assert other.handled() == ["next"]


@pytest.mark.parametrize("options", [{"group": "workers"}, {"group": None}], ids=["group", "alone"])
async def test_living_forked_child_of_a_killed_server_does_not_keep_its_endpoints(
    house: House, options: dict[str, Any]
) -> None:
    bus = await publisher(house)
    server = await worker(house, "hold", **options)
    child = await server.ask("fork")
    try:
        await bus.publish("a.b", "precious", from_="c")
        await server.wait_handled(1)
        other = await worker(house, **options)
        await server.kill()
        assert await other.wait_handled(1) == ["precious"]
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


async def test_group_and_no_group_on_one_endpoint_are_refused(house: House) -> None:
    await publisher(house)
    await worker(house)
    with pytest.raises(ChildError, match="endpoint_group_conflict"):
        await worker(house, group=None)
    with pytest.raises(ChildError, match="endpoint_group_conflict"):
        await worker(house, group="others")


async def test_subscriptions_of_one_process_cannot_serve_an_endpoint_in_two_ways(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder(), group="workers")
    with pytest.raises(PosthouseError) as refused:
        await bus.subscribe("a.*", Recorder())
    assert refused.value.code == "endpoint_group_conflict"
    assert [view.pattern for view in await bus.list_subscriptions()] == ["a.b"]


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("concurrency", "2"), ("group", ""), ("group", 7)])
async def test_wrong_concurrency_and_group_are_refused(bus: Bus, name: str, value: object) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.subscribe("a.b", Recorder(), **{name: value})  # type: ignore[arg-type]
    assert refused.value.code == "value_invalid"


async def test_breaker_closes_when_the_first_server_comes_not_when_another_joins(house: House) -> None:
    bus = await house.bus(clock=system_clock(), reliability=reliability())
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder(fails=True), group="workers")
    await fail_until_open(bus, "a.b")
    await worker(house)
    assert reasons(await bus.publish("a.b", 1, from_="c")) == ["circuit_open"]


async def test_ack_of_a_message_in_a_served_endpoint_is_refused(house: House) -> None:
    bus = await publisher(house)
    await worker(house, "hold")
    ids = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(2)]
    assert await bus.ack("a.b", ids[1]) == "being_served"


async def test_message_that_kills_its_process_is_a_dead_letter_and_buries_no_other(house: House) -> None:
    """Two messages are handled at once; one ends the process each time, the other is innocent."""
    bus = await publisher(house)
    (guilty,) = [(await bus.publish("a.b", "deadly", from_="c")).message_id]
    await bus.publish("a.b", "innocent", from_="c")
    deaths = 0
    while not house.mailbox("a.b").failed:
        agent = await worker(house, "record", concurrency=2)
        await eventually(lambda agent=agent: agent.process.returncode is not None or house.mailbox("a.b").failed)  # type: ignore[misc]
        deaths += agent.process.returncode is not None
        assert deaths <= 3
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    (letter,) = await bus.dead_letters("a.b")
    assert letter.id == guilty
    assert "3 times" in letter.reason
    assert deaths == 3


async def test_clean_close_gives_messages_back_uncounted(house: House) -> None:
    for _ in range(4):
        bus = await house.bus()
        held = Recorder(holds=True)
        await bus.register_endpoint("a.b")
        if not house.mailbox("a.b").depth:
            await bus.publish("a.b", "precious", from_="c")
        await bus.subscribe("a.b", held)
        await held.wait(1)
        await bus.close()
        assert len(house.mailbox("a.b").new) == 1
    assert of_type(house.root, "bus.redelivered") == []


async def test_max_attempts_is_a_setting(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_BUS_MAX_ATTEMPTS", "1")
    bus = await publisher(house)
    await bus.publish("a.b", "deadly", from_="c")
    dying = await worker(house)
    await eventually(lambda: dying.process.returncode is not None)
    await worker(house)
    await eventually(lambda: house.mailbox("a.b").failed)
    (letter,) = await bus.dead_letters("a.b")
    assert "started once" in letter.reason


async def test_last_attempt_gets_the_reply_of_a_handler_in_its_own_process(house: House) -> None:
    first = await worker(house, "hold", group=None)
    bus = await house.bus(clock=system_clock(), reliability=reliability(), max_attempts=2)
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "question", from_="c")
    await first.wait_handled(1)
    await first.kill()
    answers: asyncio.Queue[Any] = asyncio.Queue()

    async def ask(message: Envelope) -> None:
        answer = await bus.request("math.double", 21, from_=message.subject, timeout_s=DEADLINE_S)
        answers.put_nowait(answer.payload)

    async def double(message: Envelope) -> None:
        assert message.reply_to is not None
        await bus.publish(message.reply_to, message.payload * 2, from_=message.subject)

    await bus.register_endpoint("math.double")
    await bus.subscribe("math.double", double)
    await bus.subscribe("a.b", ask)
    assert await asyncio.wait_for(answers.get(), DEADLINE_S / 2) == 42


async def test_handler_that_waits_for_a_reply_gets_it_while_a_last_attempt_waits_to_run_alone() -> None:
    gate, started = RunGate(), []
    assert gate.enter(lambda: None, alone=False), "the handler that asks"

    def last_attempt() -> None:
        if gate.enter(last_attempt, alone=True):
            started.append("last attempt")

    def replier() -> None:
        if gate.enter(replier, alone=False):
            started.append("replier")

    last_attempt()
    replier()
    assert started == []
    unused: Any = None
    RUNNING.set(RunningHandler(unused, 0.0))
    with gate.opened():
        assert started == ["replier"]
    gate.leave()
    assert started == ["replier"], "the asking handler still runs"
    gate.leave()
    assert started == ["replier", "last attempt"]


async def test_group_of_a_pattern_that_matches_everything_leaves_replies_alone(bus: Bus) -> None:
    async def double(message: Envelope) -> None:
        if message.subject == "math.double" and message.reply_to is not None:
            await bus.publish(message.reply_to, message.payload * 2, from_=message.subject)

    await bus.register_endpoint("math.double")
    await bus.subscribe(">", double, group="workers")
    answer = await bus.request("math.double", 21, from_="c", timeout_s=DEADLINE_S)
    assert answer.payload == 42


async def test_standby_takes_over_even_if_it_could_not_look_at_the_server_before(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await worker(house, group=None)
    bus = await publisher(house)
    looks = 0

    def is_alive_after_a_failure(*arguments: Any) -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:  # the first one stands by
            raise OSError(errno.EIO, "Input/output error")
        return is_alive(*arguments)

    monkeypatch.setattr(serving, "is_alive", is_alive_after_a_failure)
    got = Recorder()
    await bus.subscribe("a.b", got)
    await eventually(lambda: looks >= 2)
    await server.kill()
    await bus.publish("a.b", "hello", from_="c")
    assert await got.wait(1) == ["hello"]


def test_process_counts_as_alive_if_no_descriptor_is_left_to_ask(tmp_path: Path) -> None:
    """A process at its limit of descriptors must not take the messages of its living peers."""
    instance = Instance(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        assert is_alive(tmp_path, instance.name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        instance.close()
    assert not is_alive(tmp_path, instance.name)
