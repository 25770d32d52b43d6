"""send, inbox, peers, topic, profile, tail, history and trace against real daemons and a real relay."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.daemon import DaemonClient
from posthouse.model.clock import parse_utc, system_clock
from posthouse.model.codes.spec import Exit
from posthouse.model.limits import SECOND_NS
from tests.cli.command_line import CommandLine
from tests.cli.daemon.hosts import Hosts
from tests.faults.daemon_process import DaemonProcess

pytestmark = pytest.mark.xdist_group("cli-daemon")
Run = Callable[..., Any]


@pytest.fixture
def alice(cli: CommandLine, hosts: Hosts) -> Run:
    return on(cli, hosts.alice)


@pytest.fixture
def bob(cli: CommandLine, hosts: Hosts) -> Run:
    run = on(cli, hosts.bob)
    unread = run("inbox", "--unread")["items"]
    if unread:
        run("inbox", "seen", *(item["id"] for item in unread))
    return run


def on(cli: CommandLine, daemon: DaemonProcess) -> Run:
    """Run commands on a host and return what they answer."""

    def run(*tokens: str) -> Any:
        outcome = cli(*tokens, "--dir", str(daemon.directory), "--json")
        assert outcome.exit == 0, outcome.err
        return outcome.value

    return run


def test_sent_message_is_waited_for_read_and_seen(alice: Run, bob: Run) -> None:
    sent = alice("send", "bob", "the horses are ready", "--priority", "now", "--meta", '{"k":1}', "--id", "m-1")
    assert (sent["via"], sent["status"], sent["client_message_id"]) == ("daemon", "queued", "m-1")
    (item,) = bob("inbox", "wait", "--timeout", "30")["items"]
    assert (item["body"], item["sender_name"], item["priority"]) == ("the horses are ready", "alice", "now")
    assert item["meta"] == {"k": 1}
    assert bob("inbox", "show", item["id"])["seen_at"] is not None
    assert bob("inbox", "--unread")["items"] == []


def test_peek_leaves_mail_unread(alice: Run, bob: Run) -> None:
    alice("send", "bob", "look")
    (first,) = bob("inbox", "wait", "--timeout", "30", "--peek")["items"]
    (again,) = bob("inbox", "wait", "--timeout", "0")["items"]
    assert first["id"] == again["id"]


def test_wait_ends_without_mail_when_the_time_is_over(bob: Run) -> None:
    assert bob("inbox", "wait", "--timeout", "0.2") == {"items": []}


def test_wait_wakes_when_mail_comes(hosts: Hosts, bob: Run) -> None:
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(_wait(hosts.bob)))
    waiting.start()
    with DaemonClient(hosts.alice.directory) as daemon:
        daemon.send("bob", "wake up")
    waiting.join(30)
    assert [item.body for item in got] == ["wake up"]


def _wait(daemon: DaemonProcess) -> list[Any]:
    with DaemonClient(daemon.directory) as client:
        return client.wait(30)


def test_same_id_and_message_is_sent_once_and_another_message_is_refused(
    cli: CommandLine, hosts: Hosts, alice: Run, bob: Run
) -> None:
    for _ in range(3):
        alice("send", "bob", "once", "--id", "once-1")
    refused = cli("send", "bob", "other", "--id", "once-1", "--dir", str(hosts.alice.directory), "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "idempotency_key_reused")
    assert refused.problem["client_message_id"] == "once-1"
    alice("send", "bob", "end")
    bodies: list[str] = []
    while "end" not in bodies:
        bodies += [item["body"] for item in bob("inbox", "wait", "--timeout", "30")["items"]]
    assert sorted(bodies) == ["end", "once"]


@pytest.mark.parametrize(
    ("to", "code"),
    [("nobody", "member_name_unknown"), ("#nowhere", "topic_unknown"), ("00000000", "member_name_unknown")],
)
def test_unknown_recipient_is_refused(cli: CommandLine, hosts: Hosts, to: str, code: str) -> None:
    refused = cli("send", to, "x", "--dir", str(hosts.alice.directory), "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, code)
    if code == "topic_unknown":
        assert "`posthouse topic create nowhere`" in refused.problem["hint"]


def test_time_to_wait_is_in_seconds_or_has_a_unit(bob: Run, cli: CommandLine) -> None:
    for given in ("0", "0.5", "1s"):
        assert "items" in bob("inbox", "wait", "--peek", "--timeout", given)
    refused = cli("inbox", "wait", "--timeout", "soon", "--json")
    assert (refused.exit, "90s" in refused.problem["hint"]) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    "command", [("send", "bob"), ("message", "send", "bob"), ("request", "bob"), ("topic", "post", "builds")]
)
@pytest.mark.parametrize("text", ["", " \n"])
def test_message_that_says_nothing_is_a_usage_error(cli: CommandLine, command: tuple[str, ...], text: str) -> None:
    refused = cli(*command, text, "--json")
    assert (refused.exit, refused.problem["detail"]) == (Exit.USAGE, "the message is empty")
    assert "stdin" in refused.problem["hint"]


def test_time_in_words_is_refused_with_both_forms(cli: CommandLine, hosts: Hosts) -> None:
    refused = cli("send", "bob", "x", "--valid-until", "tomorrow", "--dir", str(hosts.alice.directory), "--json")
    assert refused.exit == Exit.USAGE and "2026-01-31T18:00:00Z" in refused.problem["hint"]


def test_message_is_valid_for_a_duration_from_now(cli: CommandLine, hosts: Hosts, alice: Run, bob: Run) -> None:
    before_ns = system_clock().wall_ns()
    alice("send", "bob", "deploy now", "--valid-until", "2h")
    (item,) = bob("inbox", "wait", "--timeout", "30")["items"]
    assert 0 <= parse_utc(item["valid_until"]) - before_ns - 7_200 * SECOND_NS < 60 * SECOND_NS
    there = ("--dir", str(hosts.alice.directory))
    for wrong in (("2 hours",), ("2026-01-31",), ("2h", "--id", "deploy-9")):
        assert cli("send", "bob", "deploy now", "--valid-until", *wrong, *there).exit == Exit.USAGE


def test_meta_that_is_no_object_is_a_usage_error(cli: CommandLine) -> None:
    assert cli("send", "bob", "x", "--meta", "[1]").exit == Exit.USAGE


def test_text_comes_from_stdin(alice: Run, bob: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    alice("send", "bob", "-")
    assert bob("inbox", "wait", "--timeout", "30")["items"][0]["body"] == "from a pipe"


def test_topic_message_reaches_subscribers(alice: Run, bob: Run) -> None:
    alice("topic", "create", "builds.main")
    bob("topic", "subscribe", "builds.>")
    listed = bob("topic", "list")
    assert bob("topic", "ls") == listed, "as in the other groups"
    assert ("builds.main" in listed["topics"], listed["subscriptions"]) == (True, ["builds.>"])
    alice("send", "#builds.main", "green")
    (item,) = bob("inbox", "wait", "--timeout", "30")["items"]
    assert (item["topic"], item["body"]) == ("builds.main", "green")
    assert bob("inbox", "--topic", "#builds.main")["items"][0]["id"] == item["id"]
    assert alice("history", "#builds.main")["messages"][0]["body"] == "green"
    bob("topic", "unsubscribe", "builds.>")
    assert bob("topic", "list")["subscriptions"] == []


def test_history_with_a_member_shows_both_directions(alice: Run, bob: Run) -> None:
    alice("send", "bob", "question")
    (item,) = bob("inbox", "wait", "--timeout", "30")["items"]
    bob("send", "alice", "answer", "--reply-to", item["message_id"])
    (reply,) = alice("inbox", "wait", "--timeout", "30")["items"]
    assert reply["reply_to_id"] == item["message_id"]
    shown = [message["body"] for message in alice("history", "bob", "--limit", "2")["messages"]]
    assert shown == ["answer", "question"]


def test_former_name_of_a_post_sends_to_the_topic(alice: Run, bob: Run) -> None:
    alice("topic", "create", "former")
    bob("topic", "subscribe", "former")
    assert alice("topic", "post", "former", "as before")["via"] == "daemon"
    (item,) = bob("inbox", "wait", "--topic", "former", "--timeout", "30")["items"]
    assert item["body"] == "as before"
    bob("topic", "unsubscribe", "former")


def test_peers_are_listed_with_presence_and_this_host_is_marked(hosts: Hosts, alice: Run) -> None:
    peers = {peer["name"]: peer for peer in alice("peers")["peers"]}
    assert (peers["bob"]["node"], peers["bob"]["online"]) == (hosts.bob.node, True)
    assert [name for name, peer in peers.items() if peer["is_self"]] == ["alice"]


def test_profile_changes_what_is_given_and_nothing_is_a_usage_error(cli: CommandLine, hosts: Hosts, alice: Run) -> None:
    alice("profile", "--summary", "reading", "--capability", "review")
    applied = alice("profile", "--status", "working")["applied"]
    assert applied == {"summary": "reading", "capabilities": ["review"], "status": "working"}
    assert cli("profile", "--dir", str(hosts.alice.directory)).exit == Exit.USAGE


def test_trace_shows_the_steps_of_a_message_on_both_hosts(alice: Run, bob: Run) -> None:
    sent = alice("send", "bob", "where am I")
    bob("inbox", "wait", "--timeout", "30")
    here, there = alice("trace", sent["client_message_id"]), bob("trace", sent["message_id"])
    steps = [f"{step['where']}: {step['what']}" for step in here["steps"]]
    assert steps[0] == "outbox: accepted"
    assert {"relay: queued for bob", "relay: sent to bob"} < set(steps)
    assert here["message_id"] == there["message_id"] == sent["message_id"]
    assert "received" in [step["what"] for step in there["steps"] if step["where"] == "inbox"]
    times = [step["at"] for step in here["steps"] if step["at"]]
    assert times == sorted(times)


def test_trace_of_nothing_is_refused(cli: CommandLine, hosts: Hosts) -> None:
    refused = cli("trace", "0" * 26, "--dir", str(hosts.alice.directory), "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "outbox_row_unknown")


def test_tail_goes_on_behind_an_event(cli: CommandLine, hosts: Hosts, alice: Run, bob: Run) -> None:
    alice("send", "bob", "first")
    (first,) = bob("inbox", "wait", "--timeout", "30")["items"]
    alice("send", "bob", "second")
    outcome = cli("tail", "--after", first["id"], "--count", "1", "--json", "--dir", str(hosts.bob.directory))
    answer = json.loads(outcome.out)
    assert (answer["event"], answer["data"]["body"]) == ("message", "second")


def test_people_see_a_table_without_control_characters(cli: CommandLine, hosts: Hosts, alice: Run, bob: Run) -> None:
    alice("send", "bob", "red \x1b[31malert")
    outcome = cli("inbox", "wait", "--timeout", "30", "--dir", str(hosts.bob.directory))
    assert "\x1b" not in outcome.out
    assert "red \\x1b[31malert" in outcome.out


def test_mail_is_listed_page_by_page_searched_and_marked_by_conditions(
    cli: CommandLine, hosts: Hosts, alice: Run, bob: Run
) -> None:
    bob("inbox", "seen", "--all")
    for number in range(3):
        alice("send", "bob", f"parcel {number}")
    found: list[Any] = []
    while len(found) < 3:
        found += bob("inbox", "wait", "--timeout", "30", "--peek")["items"][len(found) :]
    outcome = cli("inbox", "--unread", "--limit", "2", "--dir", str(hosts.bob.directory))
    assert f"more: --after {found[1]['id']}" in outcome.err
    rest = bob("inbox", "--unread", "--limit", "2", "--after", found[1]["id"])
    assert ([item["body"] for item in rest["items"]], rest["next"]) == (["parcel 2"], None)
    assert [item["body"] for item in bob("inbox", "--search", "parcel 1")["items"]] == ["parcel 1"]
    assert bob("inbox", "seen", "--before", found[2]["id"])["count"] == 2
    assert [item["body"] for item in bob("inbox", "--unread")["items"]] == ["parcel 2"]
    bob("inbox", "seen", "--from", "alice")
    assert cli("inbox", "seen", "--dir", str(hosts.bob.directory)).exit == 2
    rows = alice("daemon", "outbox", "list", "--limit", "2")
    older = alice("daemon", "outbox", "list", "--limit", "1", "--before", rows["next"])["items"]
    assert len(rows["items"]) == 2 and older[0]["id"] < rows["items"][1]["id"]


def test_late_mail_says_so_and_a_message_is_superseded_and_withdrawn(
    cli: CommandLine, hosts: Hosts, alice: Run, bob: Run
) -> None:
    alice("send", "bob", "deploy 7", "--id", "deploy-7", "--valid-until", "2099-01-01T00:00:00Z")
    (item,) = bob("inbox", "wait", "--timeout", "30", "--peek")["items"]
    assert (item["valid_until"], item["is_stale"]) == ("2099-01-01T00:00:00.000Z", False)
    alice("send", "bob", "deploy 8", "--id", "deploy-8", "--supersedes", "deploy-7")
    (item,) = bob("inbox", "wait", "--timeout", "30", "--search", "8")["items"]
    shown = cli("inbox", "show", item["meta"]["supersedes"], "--dir", str(hosts.bob.directory)).out
    assert "superseded by a later message" in shown and "1 newer from this sender" in shown
    assert alice("daemon", "outbox", "withdraw", "deploy-8")["state"] == "withdrawing"
    (notice,) = bob("inbox", "wait", "--timeout", "30")["items"]
    assert notice["meta"] == {"withdraws": item["message_id"]}


def test_a_thread_is_shown_with_its_subject_and_what_is_left_of_its_budget(
    cli: CommandLine, hosts: Hosts, alice: Run, bob: Run
) -> None:
    alice("send", "bob", "ready to merge?", "--id", "merge-1")
    (question,) = bob("inbox", "wait", "--timeout", "30")["items"]
    bob("send", "alice", "yes", "--reply-to", question["message_id"])
    alice("inbox", "wait", "--from", "bob", "--timeout", "30")
    shown = cli("inbox", "thread", "merge-1", "--dir", str(hosts.alice.directory)).out
    assert shown.startswith("ready to merge?\nbetween alice, bob\nbudget: ")
    assert cli("inbox", "thread", "nothing", "--dir", str(hosts.alice.directory)).exit == 1


def test_an_agent_is_paused_for_a_time_listed_as_paused_and_resumed(cli: CommandLine, hosts: Hosts, bob: Run) -> None:
    bob("agent", "add", "night-owl", "--program", "owl")
    bob("agent", "pause", "night-owl", "--for", "2h", "--reason", "usage limit")
    listed = cli("agent", "ls", "--dir", str(hosts.bob.directory)).out
    assert "paused until" in listed and "usage limit" in listed
    assert [each["name"] for each in bob("agent", "resume", "--program", "owl")["items"]] == ["night-owl"]
    assert bob("agent", "resume", "night-owl")["items"] == []
    for wrong in (("--for", "2h", "--until", "2099-01-01T00:00:00Z"), (), ("--until", "2001-01-01T00:00:00Z")):
        assert cli("agent", "pause", "night-owl", *wrong, "--dir", str(hosts.bob.directory)).exit == Exit.USAGE


def test_without_a_daemon_send_connects_itself_and_says_so(
    cli: CommandLine, hosts: Hosts, bob: Run, tmp_path: Path
) -> None:
    cli("keys", "new")
    nowhere = str(tmp_path / "nowhere")
    outcome = cli("send", "bob", "by myself", "--relay", hosts.relay.url, "--dir", nowhere)
    assert outcome.exit == 0
    assert "no daemon runs" in outcome.err
    answer = cli("send", "bob", "again", "--relay", hosts.relay.url, "--dir", nowhere, "--json").value
    assert (answer["via"], answer["status"], answer["duplicate"]) == ("relay", "done", False)
    bodies: list[str] = []
    while len(bodies) < 2:
        bodies += [item["body"] for item in bob("inbox", "wait", "--timeout", "30")["items"]]
    assert bodies == ["by myself", "again"]


@pytest.mark.parametrize("command", [("inbox",), ("peers",), ("daemon", "status"), ("topic", "list"), ("tail",)])
def test_without_a_daemon_the_others_say_how_to_start_one(
    cli: CommandLine, tmp_path: Path, command: tuple[str, ...]
) -> None:
    refused = cli(*command, "--dir", str(tmp_path), "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.UNREACHABLE, "daemon_unreachable")
    assert "posthouse up" in refused.problem["hint"]
