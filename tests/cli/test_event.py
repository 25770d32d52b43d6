from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.journal.cursor import Cursor
from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("cli-relay")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path_factory.mktemp("relay")) as running:
        yield running


@pytest.fixture
def node(cli: CommandLine, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new node for each test, with a relay."""
    monkeypatch.setenv("POSTHOUSE_CLIENT_RELAY", relay.url)
    return str(cli("keys", "new", "--json").value["node"])


def test_published_event_is_shown_by_its_id(cli: CommandLine, node: str) -> None:
    sent = cli("event", "publish", "hello", "--tag", "t=greetings", "--json").value
    got = cli("event", "get", sent["id"], "--json").value
    assert (got["content"], got["tags"], got["pubkey"]) == ("hello", [["t", "greetings"]], node)
    shown = cli("event", "get", sent["id"]).out
    assert "hello" in shown
    assert node in shown


def test_content_and_tags_can_be_anything(cli: CommandLine, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\nüñí"))
    tag = '["blob","0123","5","https://store.example/x"]'
    sent = cli("event", "publish", "-", "--kind", "30000", "--tag", "d=a/b=c", "--tag", tag, "--json").value
    got = cli("event", "address", f"30000:{node}:a/b=c", "--json").value
    assert got["id"] == sent["id"]
    assert got["content"] == "from stdin\nüñí"
    assert got["tags"] == [["d", "a/b=c"], ["blob", "0123", "5", "https://store.example/x"]]


@pytest.mark.parametrize("tag", ["novalue", "=x", "[1]", "[]", "[broken"])
def test_tag_that_is_none_is_a_usage_error(cli: CommandLine, node: str, tag: str) -> None:
    assert cli("event", "publish", "x", "--tag", tag).exit == Exit.USAGE


def test_signed_event_can_be_sent_again_from_a_file(cli: CommandLine, node: str, tmp_path: Path) -> None:
    sent = cli("event", "publish", "keep me", "--json").value
    event = cli("event", "get", sent["id"], "--json").value
    del event["seq"]
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    again = cli("event", "publish", "--event", str(file), "--json").value
    assert again == sent | {"duplicate": True}


def test_query_filters_orders_and_pages(cli: CommandLine, node: str) -> None:
    for content in ("a", "b", "c"):
        cli("event", "publish", content, "--kind", "2", "--tag", f"t={content}")
    mine = ("event", "query", "--author", node, "--json")
    first = cli(*mine, "--limit", "2").value
    assert [event["content"] for event in first["events"]] == ["a", "b"]
    rest = cli(*mine, "--cursor", first["cursor"]).value
    assert ([event["content"] for event in rest["events"]], rest["cursor"]) == (["c"], None)
    newest = cli(*mine, "--order", "desc", "--tag", "t=a", "--tag", "t=c").value["events"]
    assert [event["content"] for event in newest] == ["c", "a"]
    assert cli(*mine, "--count").value == {"count": 3}


def test_tail_stops_after_the_stored_events_or_the_given_count(cli: CommandLine, node: str) -> None:
    for content in ("a", "b", "c"):
        cli("event", "publish", content)
    mine = ("event", "tail", "--author", node, "--json")
    lines = [json.loads(line) for line in cli(*mine, "--stored").out.splitlines()]
    assert [line["content"] for line in lines] == ["a", "b", "c"]
    assert [json.loads(cli(*mine, "--limit", "1", "--count", "1").out)["content"]] == ["c"]


def test_line_breaks_in_a_body_forge_no_line_of_tail(cli: CommandLine, node: str) -> None:
    body = "green\n99  2026-01-01T00:00:00Z  boss  1  pay the invoice\x1b[2J\x9b1m\u202e"
    sent = cli("event", "publish", body, "--tag", "t=a\nb", "--json").value
    shown = cli("event", "tail", "--author", node, "--stored").out
    assert len(shown.splitlines()) == 1
    assert shown.rstrip("\n").isprintable()
    lines = cli("event", "get", str(sent["id"])).out.splitlines()
    assert [line for line in lines if line.startswith("99")] == []
    assert all(line.isprintable() for line in lines)
    raw = cli("event", "tail", "--author", node, "--stored", "--json").out
    assert raw.rstrip("\n").isprintable()
    assert json.loads(raw)["content"] == body


def test_tail_continues_from_a_cursor(cli: CommandLine, node: str) -> None:
    for content in ("a", "b", "c"):
        cli("event", "publish", content)
    cursor = cli("event", "query", "--author", node, "--limit", "1", "--json").value["cursor"]
    lines = cli("event", "tail", "--author", node, "--cursor", cursor, "--stored", "--json").out.splitlines()
    assert [json.loads(line)["content"] for line in lines] == ["b", "c"]


@pytest.mark.parametrize("first", ["fb", "fbefbe"])  # cursors that begin with one hyphen and with four
@pytest.mark.parametrize("command", [("query",), ("tail", "--stored"), ("address", "30000:{node}:d", "--history")])
def test_cursor_may_begin_with_hyphens(cli: CommandLine, node: str, command: tuple[str, ...], first: str) -> None:
    cursor = str(Cursor(first.ljust(32, "0"), 1))
    assert cursor.startswith("-")
    tokens = [token.format(node=node) for token in command]
    refused = cli("event", *tokens, "--cursor", cursor, "--json")
    assert refused.problem["code"] == "cursor_reset"


def test_history_lists_all_versions_and_address_the_latest(cli: CommandLine, node: str) -> None:
    for content in ("old", "new"):
        cli("event", "publish", content, "--kind", "30001", "--tag", "d=state")
    assert cli("event", "address", f"30001:{node}:state", "--json").value["content"] == "new"
    history = cli("event", "address", f"30001:{node}:state", "--history", "--json").value["events"]
    assert [event["content"] for event in history] == ["old", "new"]


def test_publish_says_whether_the_event_is_current(cli: CommandLine, node: str, tmp_path: Path) -> None:
    old = cli("event", "publish", "old", "--kind", "30002", "--tag", "d=state", "--json").value
    assert old["current"] is True
    event = cli("event", "get", old["id"], "--json").value
    del event["seq"]
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    assert cli("event", "publish", "new", "--kind", "30002", "--tag", "d=state", "--json").value["current"] is True
    again = cli("event", "publish", "--event", str(file))
    assert "not current" in again.out
    assert "current" not in cli("event", "publish", "plain", "--json").value


def test_pointer_shows_what_the_latest_holder_wrote(cli: CommandLine, node: str) -> None:
    missing = cli("event", "pointer", "deploy/prod", "--json")
    assert missing.problem["code"] == "pointer_unknown"
    token = cli("lock", "acquire", "deploy/prod", "--json").value["token"]
    fence = json.dumps(["fence", "deploy/prod", str(token)])
    cli("event", "publish", "v7", "--kind", "30003", "--tag", "d=release", "--tag", fence)
    assert cli("event", "pointer", "deploy/prod", "--json").value["content"] == "v7"
    assert "v7" in cli("event", "pointer", "deploy/prod").out


def test_content_of_others_cannot_drive_the_terminal(cli: CommandLine, node: str) -> None:
    sent = cli("event", "publish", "\x1b[2Jgone", "--json").value
    assert "\x1b" not in cli("event", "get", sent["id"]).out
    assert "\x1b" not in cli("event", "query", "--id", sent["id"]).out


def test_sealed_content_of_others_is_not_shown(cli: CommandLine, node: str) -> None:
    other = "ed25519:29acbae141bccaf0b22e1a94d34d0bc7361e526d0bfe12c89794bc9322966dd7"
    sent = cli("event", "publish", "psst", "--seal-for", other, "--json").value
    assert cli("event", "get", sent["id"], "--json").value["plaintext"] == "psst", "its author can open a box"
    cli("keys", "new", "--key-file", str(cli.home / "eve.json"))
    eve = cli("event", "get", sent["id"], "--key-file", str(cli.home / "eve.json"), "--json").value
    assert "plaintext" not in eve


def test_unknown_event_is_exit_1_and_no_key_is_exit_4(
    cli: CommandLine, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_CLIENT_RELAY", relay.url)
    missing = cli("event", "get", "0" * 64, "--json")
    assert (missing.exit, missing.problem["code"]) == (Exit.IDENTITY, "key_file_missing")
    cli("keys", "new")
    unknown = cli("event", "get", "0" * 64, "--json")
    assert (unknown.exit, unknown.problem["code"]) == (Exit.REFUSED, "event_unknown")
