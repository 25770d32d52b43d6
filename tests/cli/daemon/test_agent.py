"""`posthouse agent` and --agent against a real daemon: what a person types, with the usual mistakes."""

from __future__ import annotations

from pathlib import Path
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


def test_an_agent_sends_to_another_one_and_reads_its_own_inbox(cli: CommandLine, hosts: Hosts) -> None:
    at = ("--dir", str(hosts.alice.directory), "--json")
    for name in ("ann", "ben"):
        cli("agent", "add", name, *at)
    sent = cli("send", "ben", "hello ben", "--agent", "ann", "--id", "a-1", *at)
    assert sent.exit == 0, sent.err
    [item] = cli("inbox", "wait", "--agent", "ben", "--timeout", "30", *at).value["items"]
    assert (item["body"], item["from_agent"]) == ("hello ben", "ann")
    assert "ann@" in cli("inbox", "--agent", "ben", "--dir", str(hosts.alice.directory)).out
    traced = cli("trace", "a-1", "--agent", "ann", *at).value
    assert traced["state"] in ("confirmed", "read")
    assert cli("inbox", "--unread", "--agent", "ann", *at).value["items"] == []


def test_mail_of_an_agent_without_a_daemon_is_refused_with_the_command(cli: CommandLine, tmp_path: Path) -> None:
    for arguments in (("bob", "x", "--agent", "ann"), ("ann@bob", "x")):
        outcome = cli("send", *arguments, "--dir", str(tmp_path / "none"))
        assert outcome.exit != 0
        assert "posthouse up" in outcome.err


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
