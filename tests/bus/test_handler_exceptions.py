"""The exception of a handler: in the log with its traceback, in the dead letter with its last frames."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from posthouse import Bus, Envelope
from tests.bus.house import House
from tests.bus.limits import settled
from tests.bus.mailboxes import hash_of


async def read_model(number: int) -> None:
    if number == 0:
        raise LookupError("no model of that name")
    await read_model(number - 1)


async def failing(_message: Envelope) -> None:
    await read_model(2)


def failing_in_a_thread(_message: Envelope) -> None:
    raise LookupError("no model of that name")


@pytest.mark.parametrize("handler", [failing, failing_in_a_thread], ids=["async", "sync"])
async def test_exception_is_logged_with_its_traceback_and_kept_in_the_dead_letter(bus: Bus, handler: Any) -> None:
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    with capture_logs() as entries:
        result = await bus.publish("a.b", 1, from_="c")
        await settled(bus, "a.b")
    (entry,) = [entry for entry in entries if entry["event"] == "handler_failed"]
    assert (entry["log_level"], entry["subject"], entry["id"]) == ("error", "a.b", result.message_id)
    assert entry["exception"].startswith("Traceback (most recent call last):")
    assert entry["exception"].endswith("LookupError: no model of that name")
    (letter,) = await bus.dead_letters("a.b")
    assert letter.reason == "handler failed: LookupError: no model of that name"
    assert letter.error is not None
    assert (letter.error.type, letter.error.text) == ("LookupError", "no model of that name")
    assert letter.error.frames[-1].endswith('raise LookupError("no model of that name")')
    assert all(__file__ in frame for frame in letter.error.frames)


async def test_file_of_the_dead_letter_holds_the_exception(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", failing)
    result = await bus.publish("a.b", 1, from_="c")
    await settled(bus, "a.b")
    path = house.root / "mailboxes" / hash_of("a.b") / "failed" / result.message_id
    kept = json.loads(path.read_text())["error"]
    assert (kept["type"], kept["text"]) == ("LookupError", "no model of that name")
    assert [frame.split(" in ")[1].split(":")[0] for frame in kept["frames"]] == ["failing", *["read_model"] * 3]


async def test_exception_with_an_enormous_text_leaves_a_small_dead_letter(house: House, bus: Bus) -> None:
    async def noisy(_message: Envelope) -> None:
        raise RuntimeError("x" * 10_000_000)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", noisy)
    result = await bus.publish("a.b", 1, from_="c")
    await settled(bus, "a.b")
    path = house.root / "mailboxes" / hash_of("a.b") / "failed" / result.message_id
    assert path.stat().st_size < 64 * 1024


async def test_message_without_a_handlers_exception_has_none_in_its_dead_letter(bus: Bus) -> None:
    await bus.publish("no.one", 1, from_="c")
    (letter,) = await bus.dead_letters()
    assert letter.error is None
