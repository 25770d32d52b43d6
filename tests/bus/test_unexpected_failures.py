"""Exceptions that nothing foresees: they fail one step, never an endpoint, and never a publish in silence."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from posthouse import Bus
from posthouse.bus.arrivals import Arrivals
from posthouse.bus.handlers import HandlerThreads
from posthouse.bus.maildir import Mailbox
from posthouse.bus.settling import settle_file
from posthouse.journal.append import JournalTransaction
from tests.bus.counters import depth_counter
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder
from tests.bus.waiting import DEADLINE_S, eventually


class Failing:
    """Stands for a function and raises for chosen calls."""

    def __init__(self, real: Callable[..., Any], fails: Callable[..., bool], times: int, failure: Exception) -> None:
        self._real = real
        self._fails = fails
        self.left = times
        self._failure = failure

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.left and self._fails(*arguments, **options):
            self.left -= 1
            raise self._failure
        return self._real(*arguments, **options)

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        return lambda *arguments, **options: self(instance, *arguments, **options)


class ReturnsFuture:
    """A handler that looks like a coroutine function and returns a future, as a decorated function may."""

    def __init__(self) -> None:
        self.__call__ = Recorder().__call__  # type: ignore[method-assign,assignment]

    def __call__(self, _envelope: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


ALWAYS = 1_000_000


@pytest.fixture(autouse=True)
def captured_log() -> Iterator[None]:
    """Keep the log from rendering tracebacks, which takes seconds on a loaded machine."""
    with capture_logs():
        yield


async def bus_with_mail(house: House, count: int) -> tuple[Bus, list[str]]:
    """Open a bus with an endpoint that has unserved messages."""
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    return bus, [(await bus.publish("a.b", number, from_="c")).message_id for number in range(count)]


def fail_settling(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> Failing:
    failing = Failing(settle_file, lambda *arguments: name in arguments, times, RuntimeError("unexpected"))
    monkeypatch.setattr("posthouse.bus.arrivals.settle_file", failing)
    return failing


async def test_endpoint_goes_on_after_an_unexpected_failure_while_it_settles(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, ids = await bus_with_mail(house, 3)
    failing, got = fail_settling(monkeypatch, ids[0], times=1), Recorder()
    await bus.subscribe("a.b", got)
    await got.wait(3)
    assert sorted(got.ids) == ids
    assert failing.left == 0


async def test_file_that_can_never_be_settled_keeps_no_other_message_waiting(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, ids = await bus_with_mail(house, 5)
    fail_settling(monkeypatch, ids[2], times=ALWAYS)
    got = Recorder()
    await bus.subscribe("a.b", got)
    await got.wait(4)
    later = (await bus.publish("a.b", "later", from_="c")).message_id
    await got.wait(5)
    assert got.ids == [ids[0], ids[1], ids[3], ids[4], later]


async def publish_without_a_record(house: House, monkeypatch: pytest.MonkeyPatch, payload: str) -> tuple[Bus, Recorder]:
    """Publish a message whose record cannot be written."""
    bus, got = await house.bus(reliability=reliability()), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    is_record = lambda _tx, type_, **_options: type_ == "bus.published"  # noqa: E731
    failing = Failing(JournalTransaction.append, is_record, 1, RuntimeError("unexpected"))
    monkeypatch.setattr(JournalTransaction, "append", failing)
    with pytest.raises(RuntimeError, match="unexpected"):
        await bus.publish("a.b", payload, from_="c")
    return bus, got


async def test_small_publish_whose_record_cannot_be_written_raises_and_stores_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, got = await publish_without_a_record(house, monkeypatch, "first")
    assert house.mailbox("a.b").new == []
    await bus.publish("a.b", "second", from_="c")
    assert await got.wait(1) == ["second"]
    await eventually(lambda: depth_counter(house.root, "a.b") == 0)


async def test_large_publish_whose_record_cannot_be_written_raises_and_its_message_is_delivered_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = "x" * 100_000
    bus, got = await publish_without_a_record(house, monkeypatch, first)
    await bus.publish("a.b", "second", from_="c")
    assert sorted(await got.wait(2)) == ["second", first]


async def test_files_after_one_that_cannot_be_removed_are_delivered(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, ids = await bus_with_mail(house, 3)
    folder = house.mailbox("a.b").path
    shutil.copyfile(folder / "new" / ids[0], folder / "kept")
    await bus.ack("a.b", ids[0])
    (folder / "kept").rename(folder / "cur" / ids[0])  # has ended: the server removes it when it starts
    is_leftover = lambda _mailbox, path: path == f"cur/{ids[0]}"  # noqa: E731
    failing = Failing(Mailbox.remove, is_leftover, ALWAYS, OSError(5, "Input/output error"))
    monkeypatch.setattr(Mailbox, "remove", failing)
    got = Recorder()
    await bus.subscribe("a.b", got)
    await got.wait(2)
    assert got.ids == ids[1:]
    assert failing.left < ALWAYS


async def test_message_that_cannot_be_moved_to_cur_is_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, ids = await bus_with_mail(house, 2)
    is_first = lambda _mailbox, _source, target: target == f"cur/{ids[0]}"  # noqa: E731
    monkeypatch.setattr(Mailbox, "move", Failing(Mailbox.move, is_first, 1, OSError(5, "Input/output error")))
    got = Recorder()
    await bus.subscribe("a.b", got)
    await got.wait(2)
    assert sorted(got.ids) == ids


async def test_end_of_a_message_that_fails_unexpectedly_is_written_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, got = await house.bus(reliability=reliability()), Recorder()
    await bus.register_endpoint("a.b")
    is_end = lambda _tx, type_, **_options: type_ == "bus.handled"  # noqa: E731
    failing = Failing(JournalTransaction.append, is_end, 1, RuntimeError("unexpected"))
    monkeypatch.setattr(JournalTransaction, "append", failing)
    await bus.subscribe("a.b", got)
    await bus.publish("a.b", 1, from_="c")
    await got.wait(1)
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    assert await bus.depths() == {"a.b": 0}
    assert failing.left == 0


async def test_sync_handler_without_a_thread_fails_its_message_and_the_endpoint_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, got = await house.bus(reliability=reliability()), list[Any]()
    await bus.register_endpoint("a.b")
    failing = Failing(HandlerThreads.run, lambda *_arguments: True, 1, RuntimeError("can't start new thread"))
    monkeypatch.setattr(HandlerThreads, "run", failing)
    await bus.subscribe("a.b", lambda envelope: got.append(envelope.payload))
    await bus.publish("a.b", "first", from_="c")
    await bus.publish("a.b", "second", from_="c")
    await eventually(lambda: got == ["second"])
    reasons = [letter.reason for letter in await bus.dead_letters("a.b")]
    assert reasons == ["handler failed: RuntimeError: can't start new thread"]


async def test_handler_that_returns_no_coroutine_fails_its_message_and_the_endpoint_goes_on(house: House) -> None:
    bus, other = await house.bus(reliability=reliability()), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", ReturnsFuture())
    await bus.subscribe("a.b", other)
    await bus.publish("a.b", "first", from_="c")
    await bus.publish("a.b", "second", from_="c")
    assert await other.wait(2) == ["first", "second"]
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    reasons = [letter.reason or "" for letter in await bus.dead_letters("a.b")]
    assert [reason.startswith("handler failed: TypeError") for reason in reasons] == [True, True]


async def test_publish_returns_although_the_server_of_its_endpoint_fails(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, got = await house.bus(reliability=reliability()), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    failing = Failing(Arrivals.offer_own, lambda *_arguments: True, 1, RuntimeError("unexpected"))
    monkeypatch.setattr(Arrivals, "offer_own", failing)
    result = await asyncio.wait_for(bus.publish("a.b", "first", from_="c"), DEADLINE_S)
    assert (result.delivered_to, failing.left) == (1, 0)
    await bus.publish("a.b", "second", from_="c")
    await got.wait(1)
