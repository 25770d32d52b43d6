from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("cli-relay")
BOB = "ed25519:29acbae141bccaf0b22e1a94d34d0bc7361e526d0bfe12c89794bc9322966dd7"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path_factory.mktemp("relay")) as running:
        yield running


@pytest.fixture
def mesh(cli: CommandLine, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A mesh of its own for each test, administered by the command line's node."""
    monkeypatch.setenv("POSTHOUSE_CLIENT_RELAY", relay.url)
    cli("keys", "new")
    name = tmp_path.parent.name[-8:] + "-" + tmp_path.name[-40:]
    assert cli("mesh", "create", name, "--name", "alice").exit == 0
    return name


def test_created_mesh_is_listed_with_its_relay(cli: CommandLine, relay: RelayProcess, mesh: str) -> None:
    known = cli("mesh", "ls", "--json").value["meshes"]
    assert known == [{"name": mesh, "relay": relay.url, "member_name": "alice"}]
    there = cli("mesh", "ls", "--relay", relay.url, "--json").value["meshes"]
    assert mesh in str(there)


def test_mesh_finds_its_relay_without_an_address(cli: CommandLine, mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTHOUSE_CLIENT_RELAY")
    assert cli("event", "publish", "home", "--mesh", mesh).exit == 0


def test_mesh_is_opened_to_every_key_and_closed_again(cli: CommandLine, mesh: str, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.json"
    assert cli("keys", "new", "--key-file", str(stranger)).exit == 0
    publish = ("event", "publish", "hello", "--mesh", mesh, "--key-file", str(stranger), "--json")
    assert cli(*publish).problem["code"] == "not_member"
    assert cli("mesh", "open", mesh, "--json").value["open"] is True
    assert cli(*publish).exit == 0
    assert cli("mesh", "close", mesh).out == f"mesh {mesh} is closed to all but its members\n"
    assert cli(*publish).problem["code"] == "not_member"
    assert cli("mesh", "open", mesh, "--key-file", str(stranger), "--json").problem["code"] == "not_member"
    assert cli("mesh", "close", "nowhere", "--json").problem["code"] == "mesh_unknown"


def test_members_are_added_changed_and_removed(cli: CommandLine, mesh: str) -> None:
    added = cli("mesh", "members", mesh, "--add", BOB, "--name", "bob", "--role", "reader", "--json").value
    assert [(each["name"], each["role"]) for each in added["members"]] == [("alice", "admin"), ("bob", "reader")]
    changed = cli("mesh", "members", mesh, "--add", BOB, "--name", "bob", "--role", "admin", "--json").value
    assert changed["members"][1]["role"] == "admin"
    left = cli("mesh", "members", mesh, "--remove", "bob", "--json").value
    assert [each["name"] for each in left["members"]] == ["alice"]
    assert cli("mesh", "members", mesh, "--add", BOB).exit == Exit.USAGE
    assert cli("mesh", "members", mesh, "--remove", "nobody", "--json").problem["code"] == "member_name_unknown"


def test_access_rows_are_set_by_name_and_cleared(cli: CommandLine, mesh: str) -> None:
    cli("mesh", "members", mesh, "--add", BOB, "--name", "bob")
    rows = cli("mesh", "access", mesh, "--set", "bob", "--write", "deny", "--json").value["access"]
    assert rows == [{"node": BOB, "read": "allow", "write": "deny", "lock": "allow"}]
    cli("mesh", "access", mesh, "--set", "*", "--lock", "deny")
    rows = cli("mesh", "access", mesh, "--clear", "bob", "--json").value["access"]
    assert [row["node"] for row in rows] == ["*"]


def test_limits_are_set_one_by_one_shown_obeyed_and_removed(
    cli: CommandLine, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_CLIENT_TIMEOUT_S", "1")  # so long does a command wait for room in the mesh
    publish = ("event", "publish", "note", "--mesh", mesh, "--json")
    assert cli(*publish).exit == 0
    made = cli("mesh", "limits", mesh, "--max-events", "1", "--max-age", "90d", "--max-age", "1000-1002=30d", "--json")
    ages = [(each["first_kind"], each["last_kind"], each["max_age_s"]) for each in made.value["own"]["max_age"]]
    assert ages == [(1, 39_999, 90 * 86_400), (1_000, 1_002, 30 * 86_400)]
    assert cli(*publish).problem["code"] == "mesh_full"
    changed = cli("mesh", "limits", mesh, "--on-full", "drop_oldest", "--json").value["own"]
    assert (changed["max_events"], changed["on_full"], len(changed["max_age"])) == (1, "drop_oldest", 2), "others stay"
    assert cli(*publish).exit == 0
    shown = cli("mesh", "limits", mesh).out
    assert "max_events" in shown and "1000-1002=2592000s" in shown
    left = cli("mesh", "limits", mesh, "--max-events", "none", "--max-age", "none", "--json").value["own"]
    assert left == {"on_full": "drop_oldest"}
    for mistake in (("--max-events", "0"), ("--max-events", "many"), ("--max-age", "a-b=30d"), ("--on-full", "burst")):
        assert cli("mesh", "limits", mesh, *mistake).exit == Exit.USAGE, mistake
    assert cli("mesh", "limits", mesh, "--allow", "--max-events", "9", "--json").problem["code"] == "right_missing"
    assert cli("mesh", "limits", "nowhere", "--json").problem["code"] == "mesh_unknown"


def test_usage_counts_what_a_mesh_has_stored_beside_its_limits(cli: CommandLine, mesh: str) -> None:
    cli("mesh", "topics", mesh, "--create", "news")
    cli("event", "publish", "note", "--mesh", mesh)
    cli("mesh", "limits", mesh, "--max-events", "1000", "--max-members", "50")
    used = cli("mesh", "usage", mesh, "--json").value
    assert (used["events"], used["members"], used["topics"], used["state"]) == (1, 1, 1, "active")
    assert used["bytes"] > 100
    assert used["limits"] == {"max_events": 1_000, "max_members": 50}
    rows = [line.split() for line in cli("mesh", "usage", mesh).out.splitlines()]
    assert ["events", "1", "1000"] in rows and ["members", "1", "50"] in rows and ["topics", "1", "-"] in rows
    assert cli("mesh", "usage", "nowhere", "--json").problem["code"] == "mesh_unknown"


def test_fence_rule_is_set_listed_obeyed_and_removed(cli: CommandLine, mesh: str) -> None:
    made = cli("mesh", "rule", "set", mesh, "30000", "builds/{d}", "--prefix", "ci/", "--json").value
    assert made == {"mesh": mesh, "kind": 30_000, "d_prefix": "ci/", "resource": "builds/{d}"}
    assert "builds/{d}" in cli("mesh", "rule", "ls", mesh).out
    publish = ("event", "publish", "green", "--kind", "30000", "--tag", "d=ci/linux", "--mesh", mesh, "--json")
    refusal = cli(*publish).problem
    assert (refusal["code"], refusal["resource"]) == ("fence_required", "builds/ci/linux")
    token = cli("lock", "acquire", "builds/ci/linux", "--mesh", mesh, "--json").value["token"]
    fence = json.dumps(["fence", "builds/ci/linux", str(token)])
    assert cli(*publish, "--tag", fence).value["current"] is True
    cli("mesh", "rule", "rm", mesh, "30000", "--prefix", "ci/")
    assert cli("mesh", "rule", "ls", mesh, "--json").value["rules"] == []
    assert cli(*publish).value["current"] is True
    assert cli("mesh", "rule", "rm", mesh, "30000", "--json").problem["code"] == "fence_rule_unknown"
    assert cli("mesh", "rule", "set", mesh, "1", "x").exit == Exit.USAGE


def test_topics_subscriptions_and_blocks(cli: CommandLine, mesh: str) -> None:
    assert cli("mesh", "topics", mesh, "--create", "alerts.disk", "--json").value["topics"] == ["alerts.disk"]
    assert cli("mesh", "topics", mesh, "--create", "alerts.disk", "--json").problem["code"] == "topic_exists"
    added = cli("mesh", "subscriptions", mesh, "--add", "alerts.>", "--json").value
    assert added["subscriptions"] == ["alerts.>"]
    assert cli("mesh", "subscriptions", mesh, "--remove", "alerts.>", "--json").value["subscriptions"] == []
    assert cli("mesh", "blocks", mesh, "--add", BOB, "--json").value["blocks"] == [BOB]
    assert cli("mesh", "blocks", mesh, "--remove", BOB, "--json").value["blocks"] == []
    assert cli("mesh", "topics", mesh, "--remove", "alerts.disk", "--json").value["topics"] == []


def test_invite_names_the_relay_and_the_address_given(cli: CommandLine, relay: RelayProcess, mesh: str) -> None:
    made = cli("mesh", "invite", mesh, "--json").value
    assert made["invite"].startswith(f"posthouse://127.0.0.1:{relay.port}/{mesh}?relay={relay.node}&code=")
    other = cli("mesh", "invite", mesh, "--address", "relay.example:7420").out
    assert other.startswith(f"posthouse://relay.example:7420/{mesh}?")


def test_mesh_that_exists_is_refused(cli: CommandLine, mesh: str) -> None:
    refused = cli("mesh", "create", mesh, "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "mesh_exists")


def test_joining_with_something_else_is_a_usage_error(cli: CommandLine) -> None:
    refused = cli("join", "https://relay.example/team", "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.USAGE, "invite_malformed")
    assert not cli.home.exists(), "no key is made for what is no invite"


def test_invites_are_listed_and_revoked(cli: CommandLine, mesh: str, tmp_path: Path) -> None:
    text = cli("mesh", "invite", mesh, "--uses", "3", "--role", "reader", "--json").value["invite"]
    (listed,) = cli("mesh", "invites", "ls", mesh, "--json").value["invites"]
    assert (listed["role"], listed["uses_left"]) == ("reader", 3)
    assert listed["id"] in cli("mesh", "invites", "ls", mesh).out
    assert "code" not in listed and text.rpartition("code=")[2] not in str(listed)
    assert cli("mesh", "invites", "revoke", mesh, listed["id"], "--json").value["revoked"] is True
    assert cli("mesh", "invites", "ls", mesh, "--json").value["invites"] == []
    assert cli("mesh", "invites", "revoke", mesh, listed["id"], "--json").problem["code"] == "invite_unknown"
    late = cli("join", text, "--name", "late", "--key-file", str(tmp_path / "late.json"), "--json")
    assert late.problem["code"] == "invite_invalid"
    assert "revoked" in late.problem["detail"]


def test_commands_without_a_mesh_use_the_chosen_one(cli: CommandLine, mesh: str) -> None:
    assert cli("use", mesh).exit == 0
    published = cli("event", "publish", "chosen", "--json")
    assert published.exit == 0, published.err
    assert cli("event", "get", published.value["id"], "--json").value["tags"] == [["mesh", mesh]]
    assert cli("queue", "ls", "--json").value["mesh"] == mesh
    assert cli("event", "query", "--count", "--json").value["count"] == 1
    assert cli("event", "query", "--count", "--mesh", "main", "--json").value["count"] == 0
    taken = cli("lock", "acquire", "deploy", "--json")
    assert taken.exit == 0, taken.err
    assert [each["resource"] for each in cli("lock", "ls", "--json").value["locks"]] == ["deploy"]


@pytest.mark.parametrize("name", ["sock", "pid", "local_token", "mcp_token", "schema_version", "SOCK"])
def test_names_of_files_of_the_daemon_are_no_names_of_meshes(cli: CommandLine, mesh: str, name: str) -> None:
    invite = cli("mesh", "invite", mesh, "--json").value["invite"].replace(f"/{mesh}?", f"/{name}?")
    for words in (
        ("mesh", "create", name, "--name", "alice"),
        ("join", invite),
        ("send", "bob", "x", "--mesh", name),
        ("daemon", "up", "--mesh", name, "--relay", "127.0.0.1:9"),
    ):
        assert cli(*words, "--json").problem["code"] == "mesh_name_reserved", words
    assert not (cli.home / "daemon" / name).exists()


def test_new_key_of_a_member_waits_until_it_is_approved_by_name(
    cli: CommandLine, relay: RelayProcess, mesh: str, tmp_path: Path
) -> None:
    key_file, bob = str(tmp_path / "bob.json"), ("--key-file", str(tmp_path / "bob.json"))
    former = cli("keys", "new", *bob, "--json").value["node"]
    cli("mesh", "members", mesh, "--add", former, "--name", "bob")
    assert (
        cli("mesh", "rotations", mesh).out == f"new keys of members of {mesh} have their rights at once\nno key waits\n"
    )
    assert cli("mesh", "rotations", mesh, "--require", "--json").value["required"] is True
    assert cli("keys", "rotate", "--key-file", key_file, "--relay", relay.url).exit == 0
    publish = ("event", "publish", "hello", "--mesh", mesh, *bob, "--json")
    problem = cli(*publish).problem
    assert problem["code"] == "key_not_approved" and f"mesh rotations {mesh} --approve" in problem["hint"]
    (waiting,) = cli("mesh", "rotations", mesh, "--json").value["waiting"]
    assert (waiting["name"], waiting["former"]) == ("bob", former)
    shown = cli("mesh", "rotations", mesh).out.splitlines()
    assert shown[1].split()[:2] == ["name", "role"] and shown[2].split()[:3] == ["bob", "member", waiting["node"]]
    assert cli("mesh", "rotations", mesh, "--approve", "alice", "--json").problem["code"] == "rotation_not_waiting"
    both = cli("mesh", "rotations", mesh, "--approve", "bob", "--refuse", "bob", "--json")
    assert both.problem["code"] == "value_invalid"
    assert cli("mesh", "rotations", mesh, "--approve", "bob", "--json").value["waiting"] == []
    assert cli(*publish).exit == 0
