"""What the log tells of subscriptions, publishes and endpoints that do not find each other."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from posthouse import Bus
from tests.bus.house import House
from tests.bus.waiting import eventually
from tests.cli.command_line import CommandLine


def logged(entries: list[Any], event: str) -> list[Any]:
    return [entry for entry in entries if entry["event"] == event]


def ignore(_message: object) -> None:
    """Handle a message by doing nothing."""


@pytest.mark.parametrize("pattern", ["team.builder", "team.*", "team.>"])
async def test_subscription_that_no_endpoint_matches_warns_once(bus: Bus, pattern: str) -> None:
    await bus.register_endpoint("other.builder")
    with capture_logs() as entries:
        for _ in range(2):
            await bus.subscribe(pattern, ignore)
    (entry,) = logged(entries, "subscription_matches_no_endpoint")
    assert (entry["log_level"], entry["pattern"]) == ("warning", pattern)


@pytest.mark.parametrize("endpoint", ["team.builder", "team.>", ">"])
async def test_subscription_that_an_endpoint_matches_does_not_warn(bus: Bus, endpoint: str) -> None:
    await bus.register_endpoint(endpoint)
    with capture_logs() as entries:
        await bus.subscribe("team.builder", ignore)
    assert logged(entries, "subscription_matches_no_endpoint") == []


async def test_subscription_to_an_endpoint_of_another_process_does_not_warn(house: House, bus: Bus) -> None:
    await (await house.bus()).register_endpoint("team.builder")
    with capture_logs() as entries:
        await bus.subscribe("team.builder", ignore)
    assert logged(entries, "subscription_matches_no_endpoint") == []


@pytest.mark.parametrize(("endpoint", "letters"), [("team.builder", 2), ("team.>", 3), ("team.tester", 1)])
async def test_registering_an_endpoint_tells_how_many_dead_letters_were_meant_for_it(
    house: House, bus: Bus, endpoint: str, letters: int
) -> None:
    for subject in ("team.builder", "team.builder", "team.tester", "other.one"):
        await bus.publish(subject, "early", from_="c")
    with capture_logs() as entries:
        await bus.register_endpoint(endpoint)
        (entry,) = await eventually(lambda: logged(entries, "dead_letters_match_endpoint"))
    assert (entry["subject"], entry["letters"]) == (endpoint, letters)
    assert shlex.split(entry["command"]) == [
        *("posthouse", "bus", "dead", "requeue", "--endpoint", endpoint, "--all", "--dir", str(house.root))
    ]
    assert len(await bus.dead_letters(endpoint)) == letters


async def test_command_that_the_log_names_requeues_the_dead_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a bus"
    async with Bus(root) as bus:
        await bus.publish("team.builder", "early", from_="c")
        with capture_logs() as entries:
            await bus.register_endpoint("team.>")
            (entry,) = await eventually(lambda: logged(entries, "dead_letters_match_endpoint"))
    _posthouse, *arguments = shlex.split(entry["command"])
    ran = await asyncio.to_thread(CommandLine(tmp_path / "home", capsys), *arguments)
    assert (ran.exit, ran.out) == (0, "1 dead letter requeued\n")


async def test_registering_an_endpoint_without_dead_letters_tells_nothing(house: House, bus: Bus) -> None:
    await bus.publish("team.builder", "early", from_="c")
    with capture_logs() as entries:
        await bus.register_endpoint("team.tester")
        await bus.close()
    assert logged(entries, "dead_letters_match_endpoint") == []
    assert len(list((house.root / "unrouted" / "failed").iterdir())) == 1


async def test_closing_right_after_registering_still_tells_of_the_dead_letters(bus: Bus) -> None:
    await bus.publish("team.builder", "early", from_="c")
    with capture_logs() as entries:
        await bus.register_endpoint("team.builder")
        await bus.close()
    assert [entry["letters"] for entry in logged(entries, "dead_letters_match_endpoint")] == [1]
