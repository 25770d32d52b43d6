"""Agents on the buses of two hosts, with commands alone: one receives what the other publishes; trace shows both."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.client.daemon import DaemonClient
from tests.cli.command_line import CommandLine
from tests.cli.daemon.hosts import Hosts
from tests.faults.daemon_process import DaemonProcess

pytestmark = pytest.mark.xdist_group("cli-daemon")


def value(cli: CommandLine, *tokens: str) -> Any:
    outcome = cli(*tokens, "--json")
    assert outcome.exit == 0, outcome.err
    return outcome.value


def bus_of(daemon: DaemonProcess) -> str:
    return str(daemon.home / "bus")


def test_message_of_a_bus_crosses_the_mesh_and_trace_shows_both_buses(
    cli: CommandLine, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = bus_of(hosts.alice), bus_of(hosts.bob)
    value(cli, "bus", "endpoints", "add", "mesh.main.in.>", "--dir", there)
    to = f"mesh.main.out.dm.{hosts.bob.node.removeprefix('ed25519:')}"
    published = value(cli, "bus", "pub", to, '{"content": "from bus to bus"}', "--dir", here)
    with DaemonClient(hosts.bob.directory) as daemon:
        (item,) = daemon.wait(30, sender=hosts.alice.node)
        daemon.seen([item.id])
    assert (item.body, item.client_message_id) == ("from bus to bus", f"bus-{_id(published)}")
    monkeypatch.setenv("POSTHOUSE_BUS_DIR", here)
    sent = value(cli, "trace", item.client_message_id, "--dir", str(hosts.alice.directory))
    assert [step["where"] for step in sent["steps"]][:2] == ["bus", "outbox"]
    letter = value(cli, "bus", "serve", "mesh.main.in.>", "--count", "1", "--for", "30", "--dir", there)
    assert letter["payload"]["content"] == "from bus to bus"
    monkeypatch.setenv("POSTHOUSE_BUS_DIR", there)
    came = value(cli, "trace", item.message_id, "--dir", str(hosts.bob.directory))
    assert {step["what"] for step in came["steps"] if step["where"] == "bus"} == {
        "published to mesh.main.in.>",
        "handled by mesh.main.in.>",
    }


def _id(published: dict[str, Any]) -> str:
    return str(published["messageId"] if "messageId" in published else published["message_id"])
