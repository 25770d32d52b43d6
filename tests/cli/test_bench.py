"""`posthouse bench` against a real bus directory, a relay process and a daemon process."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.bus import Bus
from posthouse.cli.bench import Load, _figures, _run
from posthouse.cli.output import Output
from posthouse.client.daemon import DaemonClient
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import error
from tests.cli.command_line import CommandLine, Outcome
from tests.faults.daemon_process import DaemonProcess
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("cli-bench")
SMALL = ("--messages", "30", "--size", "100", "--concurrency", "4")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path_factory.mktemp("relay")) as running:
        yield running


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, relay: RelayProcess) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("d"), relay.url) as running:
        yield running


def figures(outcome: Outcome) -> dict[str, Any]:
    assert outcome.exit == Exit.OK, outcome.err
    value: dict[str, Any] = outcome.value
    assert (value["messages"], value["size"], value["concurrency"], value["refused"]) == (30, 100, 4, 0)
    assert 0 < value["p50_ms"] <= value["p99_ms"] <= value["max_ms"]
    assert value["per_s"] == pytest.approx(30 / value["seconds"], rel=0.1)
    return value


def make_bus(directory: Path) -> None:
    async def make() -> None:
        async with Bus(directory) as bus:
            await bus.register_endpoint("team.me")

    asyncio.run(make())


@pytest.mark.parametrize("durability", ["process", "power"])
def test_bus_run_leaves_no_endpoint_no_mail_and_no_dead_letter(
    durability: str, cli: CommandLine, tmp_path: Path
) -> None:
    make_bus(tmp_path / "bus")
    outcome = cli("bench", "bus", *SMALL, "--dir", str(tmp_path / "bus"), "--durability", durability, "--json")
    assert (figures(outcome)["target"], outcome.value["durability"]) == ("bus", durability)

    async def left() -> tuple[list[str], int]:
        async with Bus(tmp_path / "bus") as bus:
            return [each.subject for each in await bus.list_endpoints()], len(await bus.dead_letters())

    assert asyncio.run(left()) == (["team.me"], 0)


def test_bus_that_does_not_exist_is_an_error_and_is_not_created(cli: CommandLine, tmp_path: Path) -> None:
    outcome = cli("bench", "bus", "--dir", str(tmp_path / "none"), "--json")
    assert (outcome.exit, outcome.problem["code"]) == (Exit.USAGE, "usage")
    assert str(tmp_path / "none") in outcome.problem["detail"]
    assert not (tmp_path / "none").exists()


def test_relay_run_stores_events_that_expire(cli: CommandLine, relay: RelayProcess) -> None:
    cli("keys", "new")
    value = figures(cli("bench", "relay", *SMALL, "--relay", relay.url, "--json"))
    assert (value["target"], value["ephemeral"]) == ("relay", False)
    stored = cli("event", "query", "--relay", relay.url, "--kind", "1", "--limit", "100", "--json").value["events"]
    assert len(stored) == 30
    assert all(event["content"] == "x" * 100 for event in stored)
    assert all("expiration" in [tag[0] for tag in event["tags"]] for event in stored)


def test_ephemeral_relay_run_stores_nothing(cli: CommandLine, relay: RelayProcess) -> None:
    node = cli("keys", "new", "--json").value["node"]
    assert figures(cli("bench", "relay", *SMALL, "--relay", relay.url, "--ephemeral", "--json"))["ephemeral"] is True
    assert cli("event", "query", "--relay", relay.url, "--author", node, "--count", "--json").value == {"count": 0}


def test_relay_that_does_not_run_is_unreachable(cli: CommandLine) -> None:
    cli("keys", "new")
    outcome = cli("bench", "relay", "--relay", "http://127.0.0.1:9", "--json")
    assert (outcome.exit, outcome.problem["code"]) == (Exit.UNREACHABLE, "relay_unreachable")


def test_daemon_run_marks_its_messages_as_seen(cli: CommandLine, daemon: DaemonProcess) -> None:
    value = figures(cli("bench", "daemon", *SMALL, "--dir", str(daemon.directory), "--json"))
    assert (value["target"], value["seen"], value["dropped"]) == ("daemon", 30, 0)
    with DaemonClient(daemon.directory) as client:
        assert client.inbox(unread=True) == []
        assert client.outbox(status="pending") == []


def test_daemon_run_without_a_relay_ends_with_its_messages_seen(cli: CommandLine, tmp_path: Path) -> None:
    with RelayProcess(tmp_path / "r") as relay, DaemonProcess(tmp_path / "d", relay.url) as daemon:
        relay.kill()
        with DaemonClient(daemon.directory) as client:
            client.send(daemon.node, "mine")
            value = figures(cli("bench", "daemon", *SMALL, "--dir", str(daemon.directory), "--json"))
            assert (value["seen"], value["dropped"]) == (30, 0)
            assert client.outbox(status="pending") == []


def test_daemon_that_does_not_run_is_named(cli: CommandLine, tmp_path: Path) -> None:
    outcome = cli("bench", "daemon", "--dir", str(tmp_path / "d"), "--json")
    assert (outcome.exit, outcome.problem["code"]) == (Exit.UNREACHABLE, "daemon_unreachable")
    assert "posthouse up" in outcome.problem["hint"]


def test_people_get_rate_and_latency(cli: CommandLine, tmp_path: Path) -> None:
    make_bus(tmp_path / "bus")
    outcome = cli("bench", "bus", *SMALL, "--dir", str(tmp_path / "bus"))
    assert "bus: 30 messages of 100 bytes, 4 in flight" in outcome.out
    assert "messages/s" in outcome.out and "p99" in outcome.out


async def test_no_more_than_the_concurrency_is_in_flight_and_refusals_are_counted() -> None:
    in_flight = most = 0

    async def send(number: int) -> bool:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return number % 10 > 0

    report = await _run(Load(messages=100, size=1, concurrency=7), send, Output(json=True))
    assert (most, report["refused"]) == (7, 10)


async def test_first_failure_ends_the_run() -> None:
    calls = 0

    async def send(_number: int) -> bool:
        nonlocal calls
        calls += 1
        raise error("usage", text="enough")

    with pytest.raises(Exception, match="enough"):
        await _run(Load(messages=1_000, size=1, concurrency=3), send, Output(json=True))
    assert calls == 3


def test_percentiles_are_those_of_the_latencies() -> None:
    report = _figures(Load(messages=100, size=1), [float(each) for each in range(100, 0, -1)], 0, 2.0)
    assert (report["p50_ms"], report["p99_ms"], report["max_ms"], report["per_s"]) == (51, 100, 100, 50)


def test_terminal_gets_a_progress_bar_on_stderr(tmp_path: Path) -> None:
    make_bus(tmp_path / "bus")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "posthouse.cli.main", "bench", "bus", *SMALL, "--dir", str(tmp_path / "bus")]
    with os.fdopen(leader, "rb", buffering=0) as terminal:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=follower, timeout=60)
        os.close(follower)
        shown = terminal.read(65_536)
    assert done.returncode == 0
    assert b"sending" in shown and b"sending" not in done.stdout
