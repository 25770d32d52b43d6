"""`posthouse agent` and --agent against a real daemon: what a person types, with the usual mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.client.daemon import DaemonClient
from posthouse.model.errors import PosthouseError
from tests.cli.command_line import CommandLine
from tests.cli.daemon.hosts import Hosts

pytestmark = pytest.mark.xdist_group("cli-daemon")


def test_an_agent_is_added_listed_renamed_and_retired(cli: CommandLine, hosts: Hosts) -> None:
    at = ("--dir", str(hosts.alice.directory), "--json")

    def names(*flags: str) -> list[Any]:
        return [each["name"] for each in cli("agent", "ls", *flags, *at).value["items"]]

    added = cli("agent", "add", "tester", "--program", "claude-code", "--capability", "review", *at)
    assert added.value["capabilities"] == ["review"]
    assert "tester" in names()
    assert cli("agent", "rename", "tester", "checker", *at).value["name"] == "checker"
    assert cli("agent", "retire", "checker", "--reason", "done", *at).value["retired_reason"] == "done"
    assert not {"tester", "checker"} & set(names())
    assert {"tester", "checker"} <= set(names("--all"))


def test_a_mistyped_agent_is_an_error_that_names_the_command(cli: CommandLine, hosts: Hosts) -> None:
    outcome = cli("inbox", "--agent", "cluade", "--dir", str(hosts.alice.directory))
    assert outcome.exit != 0
    assert "posthouse agent add cluade" in outcome.err


def test_the_environment_names_the_agent_of_scripts(
    cli: CommandLine, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_AGENT", "nobody-here")
    assert "nobody-here" in cli("inbox", "--dir", str(hosts.alice.directory)).err
    with DaemonClient(hosts.alice.directory) as daemon, pytest.raises(PosthouseError) as failure:
        daemon.inbox()
    assert failure.value.code == "agent_unknown"
    with DaemonClient(hosts.alice.directory, agent="") as daemon:
        assert isinstance(daemon.inbox(), list)
