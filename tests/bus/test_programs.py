"""Programs of every kind: plain scripts, threads, other event loops, servers that run until a signal, pollers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus, Envelope, PosthouseError
from posthouse.bus import polling
from posthouse.model.clock import FakeClock, system_clock
from tests.bus.house import House
from tests.bus.limits import settled
from tests.bus.waiting import DEADLINE_S, eventually

SCRIPT = """
from posthouse import Bus

with Bus({path!r}).sync as bus:
    def double(message):
        bus.publish(message.reply_to, message.payload * 2, from_=message.subject)

    bus.register_endpoint("math.double")
    bus.subscribe("math.double", double)
    print(bus.request("math.double", 21, from_="script", timeout_s=30).payload)
    bus.register_endpoint("script")
    print(bus.publish("script", "kept", from_="script").delivered_to)
    print(bus.next("script", timeout_s=30).payload)
print("closed")
"""

SERVER = """
import asyncio, sys
from posthouse import Bus

async def main():
    async with Bus({path!r}) as bus:
        async def show(message):
            print(message.payload, flush=True)

        await bus.register_endpoint("a.b")
        await bus.subscribe("a.b", show)
        await bus.serve()
        print("served", flush=True)

asyncio.run(main())
print("ended", flush=True)
"""

SYNC_SERVER = """
from posthouse import Bus

with Bus({path!r}).sync as bus:
    bus.register_endpoint("a.b")
    bus.subscribe("a.b", lambda message: print(message.payload, flush=True))
    bus.serve()
    print("served", flush=True)
print("ended", flush=True)
"""


def run_script(text: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text.format(path=str(path))], capture_output=True, text=True, timeout=60, env=os.environ
    )


def catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def test_plain_script_registers_serves_asks_and_reads(tmp_path: Path) -> None:
    done = run_script(SCRIPT, tmp_path / "bus")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines() == ["42", "1", "kept", "closed"]


@pytest.mark.parametrize(
    ("program", "number"), [(SERVER, signal.SIGINT), (SYNC_SERVER, signal.SIGTERM)], ids=["async", "sync"]
)
async def test_server_runs_until_a_signal_and_closes_in_order(house: House, program: str, number: int) -> None:
    bus = await house.bus(clock=system_clock())
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "hello", from_="c")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program.format(path=str(house.root)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), DEADLINE_S * 2) == b"hello\n"
        await eventually(lambda: catches(process.pid, signal.SIGTERM))  # a handler may run before serve() begins
        process.send_signal(number)
        rest, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S * 2)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, rest) == (0, b"served\nended\n")
    assert list((house.root / "procs").iterdir()) == [house.root / "procs" / bus.session.core.instance.name]


async def test_serve_leaves_the_signal_handlers_as_they_were(bus: Bus) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    serving = asyncio.create_task(bus.serve())
    await eventually(lambda: signal.getsignal(signal.SIGTERM) != before[1])
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, DEADLINE_S)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_signal_ends_serve_of_every_bus_in_the_process(house: House, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with Bus(tmp_path / "other") as other:
        bus = await house.bus()
        serving = [asyncio.create_task(each.serve()) for each in (bus, other)]
        await eventually(lambda: signal.getsignal(signal.SIGTERM) != before)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*serving), DEADLINE_S)
    assert signal.getsignal(signal.SIGTERM) == before


async def test_serve_ends_when_the_bus_is_closed(bus: Bus) -> None:
    serving = asyncio.create_task(bus.serve())
    await asyncio.sleep(0)
    await bus.close()
    await asyncio.wait_for(serving, DEADLINE_S)


def everything_below(root: Path) -> list[str]:
    return sorted(path.name for folder in ("new", "cur", "failed") for path in root.glob(f"*/*/{folder}/*"))


async def test_call_from_another_event_loop_is_refused_before_anything_is_stored(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")

    def foreign() -> PosthouseError:
        with pytest.raises(PosthouseError) as refused:
            asyncio.run(bus.publish("a.b", 1, from_="c"))
        return refused.value

    refused = await asyncio.to_thread(foreign)
    assert refused.code == "bus_foreign_loop"
    assert "bus.sync" in refused.hint
    assert everything_below(house.root) == []
    assert await bus.depths() == {"a.b": 0}


@pytest.mark.parametrize("call", ["open", "close", "register_endpoint"])
async def test_foreign_loop_can_neither_open_nor_close_nor_register(bus: Bus, call: str) -> None:
    arguments = ("a.b",) if call == "register_endpoint" else ()

    def foreign() -> PosthouseError:
        with pytest.raises(PosthouseError) as refused:
            asyncio.run(getattr(bus, call)(*arguments))
        return refused.value

    assert (await asyncio.to_thread(foreign)).code == "bus_foreign_loop"
    assert await bus.list_endpoints() == []


async def test_thread_publishes_over_sync(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    result = await asyncio.to_thread(lambda: bus.sync.publish("a.b", "from a thread", from_="c"))
    assert result.delivered_to == 1
    assert [message.payload for message in await bus.read_inbox("a.b")] == ["from a thread"]


async def test_plain_handler_that_publishes_over_sync_passes_its_budget_on(bus: Bus) -> None:
    for subject in ("line.first", "line.second"):
        await bus.register_endpoint(subject)

    def first(message: Envelope) -> None:
        bus.sync.publish("line.second", message.payload, from_="line.first")

    await bus.subscribe("line.first", first)
    await bus.publish("line.first", "work", from_="user")
    await settled(bus, "line.first")
    (message,) = await bus.read_inbox("line.second")
    assert message.budget.hop_count == 2


async def test_plain_handler_whose_publish_is_refused_leaves_a_dead_letter(house: House) -> None:
    bus = await house.bus(reliability={"backpressure": {"maxMailboxSize": 1}})
    await bus.register_endpoint("next.stage")
    await bus.publish("next.stage", "fills it", from_="c")

    def careless(_message: Envelope) -> None:
        bus.sync.publish("next.stage", "work", from_="a.b")

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", careless)
    await bus.publish("a.b", "input", from_="c")
    await settled(bus, "a.b")
    assert ["PublishRefused" in letter.reason for letter in await bus.dead_letters("a.b")] == [True]


async def test_sync_call_on_the_loop_of_the_bus_is_refused_instead_of_blocking_for_ever(bus: Bus) -> None:
    with pytest.raises(PosthouseError) as refused:
        bus.sync.list_endpoints()
    assert refused.value.code == "bus_sync_in_loop"


async def test_leaving_sync_does_not_close_a_bus_that_another_loop_has_opened(bus: Bus) -> None:
    def thread() -> None:
        with bus.sync as calls:
            calls.register_endpoint("a.b")

    await asyncio.to_thread(thread)
    assert [endpoint.subject for endpoint in await bus.list_endpoints()] == ["a.b"]


def test_sync_call_on_a_closed_bus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PosthouseError) as refused:
        Bus(tmp_path / "bus").sync.list_endpoints()
    assert refused.value.code == "bus_closed"


def test_sync_bus_closes_opens_again_and_leaves_no_thread(tmp_path: Path) -> None:
    bus, before = Bus(tmp_path / "bus", clock=FakeClock()), threading.active_count()
    for _ in range(2):
        with bus.sync as calls:
            remove = calls.subscribe("a.b", lambda _message: None)
            assert len(calls.list_subscriptions()) == 1
            remove()
            assert calls.list_subscriptions() == []
    assert bus.loop is None
    assert threading.active_count() == before
    assert list((tmp_path / "bus" / "procs").iterdir()) == []


def test_failure_to_open_is_raised_in_the_calling_thread(tmp_path: Path) -> None:
    (tmp_path / "bus").write_text("a file")
    with pytest.raises(PosthouseError), Bus(tmp_path / "bus").sync:
        raise AssertionError("it opened")


def test_every_public_call_of_the_bus_has_its_blocking_form() -> None:
    calls = {name for name in dir(Bus) if not name.startswith("_")} - {"loop", "problems", "session", "sync"}
    sync = type(Bus("unused").sync)
    assert sorted(name for name in calls if not callable(getattr(sync, name, None))) == []


async def test_next_returns_the_oldest_waiting_message_until_it_is_acknowledged(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    for number in range(2):
        await bus.publish("a.b", number, from_="c")
    for number in range(2):
        message = await bus.next("a.b", timeout_s=DEADLINE_S)
        assert message is not None
        assert message.payload == number
        assert await bus.next("a.b", timeout_s=DEADLINE_S) == message
        assert await bus.ack("a.b", message.id) == "acked"
    assert await bus.next("a.b", timeout_s=0.01) is None


async def test_next_waits_for_a_message_of_this_process(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    waiting = asyncio.create_task(bus.next("a.b", timeout_s=DEADLINE_S))
    await bus.publish("a.b", "news", from_="c")
    message = await waiting
    assert message is not None
    assert message.payload == "news"


async def test_next_waits_for_a_message_of_another_process(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    agent = await house.agent()
    waiting = asyncio.create_task(bus.next("a.b"))
    await agent.ask("publish", subject="a.b", payload="news", from_="c")
    message = await asyncio.wait_for(waiting, DEADLINE_S)
    assert message is not None
    assert message.payload == "news"


async def test_next_skips_messages_up_to_an_id(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    first = await bus.publish("a.b", 1, from_="c")
    await bus.publish("a.b", 2, from_="c")
    message = await bus.next("a.b", timeout_s=DEADLINE_S, after=first.message_id)
    assert message is not None
    assert message.payload == 2


async def test_next_ends_with_the_bus(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    waiting = asyncio.create_task(bus.next("a.b"))
    await asyncio.sleep(0)
    await bus.close()
    with pytest.raises(PosthouseError) as ended:
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert ended.value.code == "bus_closed"


async def test_next_ends_with_the_bus_also_while_it_reads(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    await bus.register_endpoint("a.b")
    read, reading, closed = polling.read_inbox, asyncio.Event(), asyncio.Event()

    async def read_late(*arguments: Any) -> list[Envelope]:
        reading.set()
        await closed.wait()
        return await read(*arguments)

    monkeypatch.setattr(polling, "read_inbox", read_late)
    waiting = asyncio.create_task(bus.next("a.b"))
    await reading.wait()
    await bus.close()
    closed.set()
    with pytest.raises(PosthouseError) as ended:
        await asyncio.wait_for(waiting, DEADLINE_S)
    assert ended.value.code == "bus_closed"


async def test_next_of_an_unknown_endpoint_is_refused(bus: Bus) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.next("no.one", timeout_s=1)
    assert refused.value.code == "endpoint_unknown"
