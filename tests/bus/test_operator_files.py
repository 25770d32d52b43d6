"""config.json: the operator's limits, which apply while the bus runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus
from posthouse.bus.limits_in_force import read_process_limits
from tests.bus.house import House
from tests.bus.waiting import DEADLINE_S


def write(house: House, text: str) -> None:
    path = house.root / "config.json"
    path.write_text(text)
    path.chmod(0o600)


def write_limits(house: House, **sections: Any) -> None:
    write(house, json.dumps({"reliability": sections}))


async def until_limit(bus: Bus, limit: int, within_s: float = DEADLINE_S) -> None:
    """Publish as fresh senders until a sender's limit is the expected one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    attempt = 0
    while True:
        attempt += 1
        found = await limit_of(bus, f"probe{attempt}-{id(bus)}", limit + 1)
        if found == limit:
            return
        assert loop.time() < deadline, f"the limit is {found}, not {limit}"
        await asyncio.sleep(0.02)


async def limit_of(bus: Bus, sender: str, most: int) -> int:
    """How many publishes a fresh sender may make, as far as `most`."""
    for count in range(most):
        result = await bus.publish("a.b", count, from_=sender)
        if result.rejected and str(result.rejected[0].reason) == "rate_limited":
            return count
    return most


async def opened(house: House, **settings: Any) -> Bus:
    bus = await house.bus(**settings)
    await bus.register_endpoint("a.b")
    return bus


async def test_file_wins_over_arguments(house: House) -> None:
    house.root.mkdir(mode=0o700)
    write_limits(house, rateLimit={"maxPerWindow": 2})
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 9}})
    assert await limit_of(bus, "c", 20) == 2


async def test_what_the_file_does_not_name_is_as_the_arguments_say(house: House) -> None:
    """Naming one field of one section leaves its other fields and the other sections alone."""
    house.root.mkdir(mode=0o700)
    write_limits(house, rateLimit={"windowSecs": 7}, backpressure={"pressureWarningAt": 0.5})
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 3}, "backpressure": {"maxMailboxSize": 2}})
    await bus.publish("a.b", 1, from_="x")
    await bus.publish("a.b", 1, from_="x")
    full = await bus.publish("a.b", 1, from_="x")
    assert full.rejected[0].text == "backpressure: mailbox full (2/2)"
    limited = await bus.publish("a.b", 1, from_="x")
    assert limited.rejected[0].text == "rate limit exceeded: 3/3 messages in 7s window"


async def test_what_the_file_no_longer_names_is_the_default_again(house: House) -> None:
    bus = await opened(house)
    write_limits(house, rateLimit={"maxPerWindow": 3})
    await until_limit(bus, 3)
    write_limits(house, backpressure={"maxMailboxSize": 500})
    await until_limit(bus, 100)


async def test_file_that_appears_after_a_quiet_time_counts_for_the_next_publish(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.bus.operator_files._SETTLED_S", 0.0)
    bus = await opened(house)
    assert await limit_of(bus, "before", 3) == 3
    write_limits(house, rateLimit={"maxPerWindow": 1})
    assert await limit_of(bus, "created", 3) == 1
    write_limits(house, rateLimit={"maxPerWindow": 2})
    assert await limit_of(bus, "edited", 3) == 2


async def test_file_that_appears_within_one_step_of_the_file_systems_clock_counts_for_the_next_publish(
    house: House,
) -> None:
    bus = await opened(house)
    (house.root / "other").touch()
    assert await limit_of(bus, "before", 3) == 3
    modified_ns = house.root.stat().st_mtime_ns
    write_limits(house, rateLimit={"maxPerWindow": 1})
    os.utime(house.root, ns=(modified_ns, modified_ns))
    assert await limit_of(bus, "created", 3) == 1


async def test_absent_files_cost_one_look_at_their_directory(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.bus.operator_files._SETTLED_S", 0.0)
    bus = await opened(house)
    await limit_of(bus, "before", 1)
    stat, paths = os.stat, list[Path]()

    def noting(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path):
            paths.append(Path(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", noting)
    await limit_of(bus, "c", 1)
    monkeypatch.undo()
    assert [path for path in paths if path.is_relative_to(house.root)] == [house.root]


async def test_removed_file_is_all_defaults_in_every_process(house: House) -> None:
    house.root.mkdir(mode=0o700)
    write_limits(house, rateLimit={"maxPerWindow": 1})
    bus, other = await opened(house), await house.bus()
    assert await limit_of(bus, "one", 10) == await limit_of(other, "two", 10) == 1
    (house.root / "config.json").unlink()
    await until_limit(bus, 100)
    await until_limit(other, 100)


async def test_limits_in_force_are_told_with_their_source_for_every_process(house: House) -> None:
    mine = await opened(house, reliability={"backpressure": {"maxMailboxSize": 7}}, max_hops=9)
    write_limits(house, rateLimit={"maxPerWindow": 3})
    await until_limit(mine, 3)
    agent = await house.agent()
    await agent.ask("register", subject="x.y")
    reports = read_process_limits(house.root / "procs")
    (own,) = [report for report in reports if report.pid == os.getpid()]
    (other,) = [report for report in reports if report.pid != os.getpid()]
    told = {limit.name: (limit.value, limit.source) for limit in own.limits}
    assert told["rateLimit.maxPerWindow"] == (3, "config.json")
    assert told["backpressure.maxMailboxSize"] == (7, "argument")
    assert told["circuitBreaker.failureThreshold"] == (5, "default")
    assert told["bus.max_hops"] == (9, "argument")
    differing = {limit.name: limit.value for limit in own.differences(other)}
    assert differing == {"backpressure.maxMailboxSize": 7, "bus.max_hops": 9}
    await agent.stop()
    assert [report.pid for report in read_process_limits(house.root / "procs")] == [own.pid]


def test_command_tells_which_process_applies_another_limit(tmp_path: Path) -> None:
    async def open_and_ask() -> str:
        async with Bus(tmp_path / "bus", max_hops=9):
            command = ("-m", "posthouse.cli.main", "bus", "limits", "--dir", str(tmp_path / "bus"))
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=pipe)
            shown, notes = await asyncio.wait_for(child.communicate(), 30)
            return (shown + notes).decode()

    shown = asyncio.run(open_and_ask())
    assert re.search(r"bus\.max_hops +20 +default", shown), shown
    assert f"process {os.getpid()} applies bus.max_hops 9 (from: argument)" in shown


async def test_changed_file_applies_within_a_second(house: House) -> None:
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 5}})
    assert await limit_of(bus, "before", 10) == 5
    write_limits(house, rateLimit={"maxPerWindow": 3})
    await until_limit(bus, 3, within_s=1.5)


async def test_changed_file_applies_in_other_processes(house: House) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    await agent.ask("publish", subject="a.b", payload=1, from_="c")
    write_limits(house, rateLimit={"maxPerWindow": 1})
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 1.5
    while not (await agent.ask("publish", subject="a.b", payload=1, from_="c"))["rejected"]:
        assert loop.time() < deadline


@pytest.mark.parametrize(
    "text",
    [
        "{broken",
        "[]",
        '{"reliability": []}',
        '{"reliability": {"rateLimit": {"maxPerWindow": -1}}}',
        '{"reliability": {"rateLimit": {"maxPerWindow": "many"}}}',
        '{"reliability": {"circuitBreaker": {"cooldownMs": 999}}}',
        '{"reliability": {"backpressure": {"maxMailboxSize": 0}}}',
        '{"reliability": {"unknown": {}}}',
        '{"reliability": {"rateLimit": {"maxPerWindow": 1, "typo": 2}}}',
    ],
)
async def test_invalid_file_keeps_everything_and_is_reported(house: House, text: str) -> None:
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 4}})
    write(house, text)
    await reported(bus)
    assert await limit_of(bus, "after", 10) == 4
    write_limits(house, rateLimit={"maxPerWindow": 2})
    await until_limit(bus, 2)
    assert bus.problems() == []


async def reported(bus: Bus) -> None:
    """Publish until the error is reported; reloading may take a second."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not any(problem.code == "reliability_invalid" for problem in bus.problems()):
        await bus.publish("a.b", 1, from_="other")
        assert loop.time() < deadline
        await asyncio.sleep(0.02)


async def test_invalid_file_at_the_start_is_reported_and_the_arguments_hold(house: House) -> None:
    house.root.mkdir(mode=0o700)
    write(house, "{broken")
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 4}})
    assert await limit_of(bus, "c", 10) == 4
    assert [problem.code for problem in bus.problems()] == ["reliability_invalid"]


async def test_unknown_keys_in_the_file_are_ignored(house: House) -> None:
    house.root.mkdir(mode=0o700)
    write(house, '{"theme": "dark", "reliability": {"rateLimit": {"maxPerWindow": 1}}}')
    bus = await opened(house)
    assert await limit_of(bus, "c", 5) == 1
    assert bus.problems() == []
