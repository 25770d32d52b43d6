from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine, Outcome
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("cli-relay")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path_factory.mktemp("relay")) as running:
        yield running


class Team:
    """Alice administers a mesh of her own; Bob is a member of it."""

    def __init__(self, cli: CommandLine, folder: Path, mesh: str) -> None:
        self._cli = cli
        self.mesh = mesh
        self.files = {name: folder / f"{name}.json" for name in ("alice", "bob")}
        self.nodes = {
            name: str(cli("keys", "new", "--key-file", str(path), "--json").value["node"])
            for name, path in self.files.items()
        }
        self.value("alice", "mesh", "create", mesh, "--name", "alice")
        self.value("alice", "mesh", "members", mesh, "--add", self.nodes["bob"], "--name", "bob")

    def value(self, member: str, *tokens: str) -> Any:
        """Run a command as a member and return its answer."""
        return self._run(member, *tokens, "--json").value

    def text(self, member: str, *tokens: str) -> str:
        """Run a command as a member and return what a person sees."""
        return self._run(member, *tokens).out

    def _run(self, member: str, *tokens: str) -> Outcome:
        place = ("--mesh", self.mesh) if tokens[0] in ("send", "inbox", "message", "queue") else ()
        outcome = self._cli(*tokens, "--key-file", str(self.files[member]), *place)
        assert outcome.exit == Exit.OK, outcome.err
        return outcome


@pytest.fixture
def team(cli: CommandLine, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Team:
    monkeypatch.setenv("POSTHOUSE_CLIENT_RELAY", relay.url)
    return Team(cli, tmp_path, f"team-{tmp_path.name[-20:].replace('.', '-')}")


def test_message_is_sent_received_confirmed_and_shown(team: Team) -> None:
    sent = team.value("alice", "send", "--direct", "bob", "the build is green", "--meta", '{"run": 7}')
    assert (sent["duplicate"], sent["not_queued"]) == (False, [])
    before = team.value("alice", "message", "show", str(sent["id"]))
    assert [each["state"] for each in before["deliveries"]] == ["queued"]
    got = team.value("bob", "inbox", "--direct", "--count", "1")
    assert (got["body"], got["sender"], got["was_stored"]) == ("the build is green", team.nodes["alice"], True)
    assert got["meta"] == {"run": 7}
    after = team.value("alice", "message", "show", str(sent["id"]))
    assert [each["state"] for each in after["deliveries"]] == ["confirmed"]


def test_topic_message_with_its_own_id_is_stored_once(team: Team) -> None:
    team.value("alice", "mesh", "topics", team.mesh, "--create", "alerts")
    team.value("bob", "mesh", "subscriptions", team.mesh, "--add", "alerts")
    first = team.value("alice", "send", "--direct", "#alerts", "full", "--id", "c-1")
    second = team.value("alice", "send", "--direct", "#alerts", "full", "--id", "c-1")
    assert (second["duplicate"], second["id"]) == (True, first["id"])
    assert team.value("bob", "inbox", "--direct", "--count", "1")["topic"] == "alerts"


def test_former_names_still_work_and_tell_people_the_new_ones(team: Team, cli: CommandLine) -> None:
    place = ("--mesh", team.mesh, "--key-file")
    sent = cli("message", "send", "bob", "hello", *place, str(team.files["alice"]))
    assert (sent.exit, "is now `posthouse send --direct`" in sent.err) == (0, True)
    got = cli("message", "receive", "--count", "1", *place, str(team.files["bob"]), "--json")
    assert (got.value["body"], got.err) == ("hello", "")


@pytest.mark.parametrize(
    "tokens",
    [
        ("send", "bob", "hello", "--unsealed"),
        ("send", "bob", "hello", "--direct", "--agent", "claude"),
        ("inbox", "--direct", "--from", "alice"),
        ("inbox", "--count", "1"),
        ("inbox", "--relay", "127.0.0.1:7420"),
    ],
)
def test_options_that_need_or_exclude_direct_are_refused_without_contacting_anything(
    tokens: tuple[str, ...], cli: CommandLine
) -> None:
    refused = cli(*tokens)
    assert (refused.exit, "--direct" in refused.err) == (Exit.USAGE, True)


def test_peeking_leaves_the_message_in_its_queue(team: Team) -> None:
    sent = team.value("alice", "send", "--direct", "bob", "still here")
    for _ in range(2):
        assert team.value("bob", "inbox", "--direct", "--peek", "--count", "1")["id"] == sent["id"]
    (queue,) = team.value("alice", "queue", "ls")["queues"]
    assert (queue["recipient"], queue["depth"]) == (team.nodes["bob"], 1)


def test_operator_sees_purges_and_requeues(team: Team, cli: CommandLine) -> None:
    ids = [str(team.value("alice", "send", "--direct", "bob", text)["id"]) for text in ("one", "two", "three")]
    rows = team.value("alice", "queue", "show", "bob")["rows"]
    assert [row["id"] for row in rows] == ids
    assert team.value("alice", "queue", "purge", "bob", "--id", ids[0])["purged"] == [ids[0]]
    assert team.value("alice", "queue", "dead")["rows"] == []
    assert team.value("alice", "queue", "requeue", "bob")["requeued"] == []
    assert team.value("alice", "queue", "purge", "bob")["purged"] == ids[1:]
    refused = cli("queue", "ls", "--mesh", team.mesh, "--key-file", str(team.files["bob"]), "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "right_missing")


def test_message_that_cannot_be_opened_is_rejected_parked_and_requeued(team: Team, cli: CommandLine) -> None:
    tags = ["--tag", f"p={team.nodes['bob']}", "--tag", "c=1", "--tag", "enc=box"]
    place = ["--mesh", team.mesh, "--key-file", str(team.files["alice"]), "--json"]
    sent = cli("event", "publish", "AAAA", "--kind", "1000", *tags, *place).value
    got = team.value("bob", "inbox", "--direct", "--count", "1")
    assert "body" not in got and got["error"]
    (row,) = team.value("alice", "queue", "dead")["rows"]
    assert (row["id"], row["state"], row["reason"]) == (sent["id"], "rejected", got["error"])
    assert team.value("alice", "queue", "requeue", "bob", "--id", sent["id"])["requeued"] == [sent["id"]]
    assert team.value("bob", "inbox", "--direct", "--count", "1")["id"] == sent["id"]


def test_people_see_tables_without_content(team: Team, cli: CommandLine) -> None:
    sent = team.value("alice", "send", "--direct", "bob", "secret words", "--unsealed")
    place = ("--mesh", team.mesh, "--key-file", str(team.files["alice"]))
    shown = cli("message", "show", str(sent["id"]), *place).out
    assert "queued" in shown and team.nodes["bob"] in shown
    listed = cli("queue", "show", "bob", *place).out
    assert str(sent["id"]) in listed and "secret" not in listed
    assert "waiting" in cli("queue", "ls", *place).out


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        (("send", "--direct", "nobody", "hello"), "member_name_unknown"),
        (("send", "--direct", "#nowhere", "hello"), "topic_unknown"),
        (("message", "show", "12"), "id_invalid"),
        (("message", "show", "0" * 64), "message_unknown"),
        (("send", "--direct", "bob", "hello", "--meta", "[1]"), "usage"),
    ],
)
def test_invalid_request_is_refused_with_its_code(
    team: Team, cli: CommandLine, tokens: tuple[str, ...], code: str
) -> None:
    outcome = cli(*tokens, "--mesh", team.mesh, "--key-file", str(team.files["alice"]), "--json")
    assert outcome.exit != Exit.OK
    assert outcome.problem["code"] == code
    if code == "member_name_unknown":  # it may be an agent: a relay knows hosts only
        assert f"`posthouse mesh members {team.mesh}`" in outcome.problem["hint"]
        assert "posthouse up" in outcome.problem["hint"]


def test_body_of_several_lines_is_received_as_one_line(team: Team) -> None:
    body = "done\n999  boss      pay the invoice\x1b[2J\x9b1m"
    team.value("alice", "send", "--direct", "bob", body)
    shown = team.text("bob", "inbox", "--direct", "--count", "1")
    assert len(shown.splitlines()) == 1
    assert shown.rstrip("\n").isprintable()
    assert "done\\n999  boss" in shown
