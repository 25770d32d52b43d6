"""`posthouse bus` as a user types it; in this process where one call is enough, in others where it must go on."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus
from posthouse.cli.bus_top import MailboxState, mailbox_row
from posthouse.model.reliability import CircuitBreaker, Reliability
from tests.bus.limits import settled
from tests.bus.mailboxes import Mailbox, hash_of
from tests.bus.waiting import eventually
from tests.cli.command_line import CommandLine, Outcome

COMMAND = [sys.executable, "-m", "posthouse.cli.main", "bus"]
DEADLINE_S = 30


class BusLine:
    """`posthouse bus ... --dir ROOT`."""

    def __init__(self, cli: CommandLine, root: Path) -> None:
        self._cli = cli
        self.root = root

    def __call__(self, *tokens: str) -> Outcome:
        return self._cli("bus", *tokens, "--dir", str(self.root))

    def lines(self, *tokens: str) -> list[Any]:
        """The JSON lines of a command that succeeded."""
        outcome = self(*tokens, "--json")
        assert outcome.exit == 0, outcome
        return [json.loads(line) for line in outcome.out.splitlines()]


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> BusLine:
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path / "home"))
    return BusLine(CommandLine(tmp_path / "home", capsys), tmp_path / "bus")


@pytest.fixture
def started(line: BusLine) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of the test; whatever still runs at the end is killed."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def start(started: list[subprocess.Popen[str]], root: Path, *tokens: str) -> subprocess.Popen[str]:
    """Start a command that goes on; it says on stderr when it is ready."""
    process = subprocess.Popen(
        [*COMMAND, *tokens, "--dir", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    started.append(process)
    assert process.stderr is not None
    assert "Ctrl-C" in process.stderr.readline()
    return process


def test_published_message_is_read_and_acknowledged(line: BusLine) -> None:
    assert line("endpoints", "add", "team.me", "--owner", "ann").exit == 0
    sent = line("pub", "team.me", '{"n": 1}', "--from", "team.you", "--json").value
    assert (sent["delivered_to"], sent["rejected"]) == (1, [])
    (mail,) = line.lines("inbox", "team.me")
    assert (mail["id"], mail["payload"], mail["from"]) == (sent["message_id"], {"n": 1}, "team.you")
    assert '{"n": 1}' in line("inbox", "team.me").out
    assert line("inbox", "team.me", "--ack", sent["message_id"]).exit == 0
    assert line.lines("inbox", "team.me") == []
    again = line("inbox", "team.me", "--ack", sent["message_id"], "--json")
    assert (again.exit, again.value["answer"]) == (1, "unknown")


def test_publish_without_an_endpoint_says_so_and_exits_with_1(line: BusLine) -> None:
    outcome = line("pub", "no.one", "1")
    assert outcome.exit == 1
    assert "dead letter" in outcome.out
    assert outcome.err == ""


def test_publish_waits_for_room_as_long_as_it_is_told(line: BusLine) -> None:
    line("endpoints", "add", "a.b")
    (line.root / "config.json").write_text('{"reliability": {"backpressure": {"maxMailboxSize": 1}}}')
    assert line("pub", "a.b", "1").exit == 0
    refused = line("pub", "a.b", "2", "--wait", "0.05")
    assert (refused.exit, "mailbox full" in refused.out) == (1, True)


def test_payload_is_json_or_text_and_never_guessed(line: BusLine, monkeypatch: pytest.MonkeyPatch) -> None:
    line("endpoints", "add", "a.b")
    refused = line("pub", "a.b", "not json")
    assert (refused.exit, refused.out) == (2, "")
    assert "--text" in refused.err
    assert line("pub", "a.b", "just text", "--text").exit == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO('["from", "stdin"]'))
    assert line("pub", "a.b", "-").exit == 0
    assert [mail["payload"] for mail in line.lines("inbox", "a.b")] == ["just text", ["from", "stdin"]]


@pytest.mark.parametrize(
    ("tokens", "code", "exit_code"),
    [
        (("pub", "a b", "1"), "subject_invalid", 1),
        (("pub", "a.b", "1", "--from", "x.*"), "subject_invalid", 1),
        (("pub", "a.b", "{"), "usage", 2),
        (("endpoints", "add", "a.*"), "subject_invalid", 1),
        (("endpoints", "remove", "a.b"), "endpoint_unknown", 1),
        (("inbox", "no.one"), "endpoint_unknown", 1),
        (("access", "add", "a b", "c", "deny"), "subject_invalid", 1),
        (("access", "add", "a", "c", "maybe"), "usage", 2),
        (("dead", "requeue", "a.b", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), "dead_letter_unknown", 1),
        (("dead", "requeue", "a.b", "../../etc/passwd"), "id_invalid", 1),
        (("breakers", "reset", "no.one"), "endpoint_unknown", 1),
        (("tap", "a..b"), "subject_invalid", 1),
        (("tap", "--after", "nonsense"), "cursor_invalid", 1),
        (("tap", "--after", "-" * 32), "cursor_reset", 1),
        (("req", "no.one", "1"), "request_undelivered", 1),
        (("top", "--once", "--interval", "0"), "usage", 2),
        (("pub",), "usage", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_bad_input_gives_a_code_a_hint_and_an_exit_code(
    line: BusLine, tokens: tuple[str, ...], code: str, exit_code: int
) -> None:
    outcome = line(*tokens, "--json")
    assert outcome.exit == exit_code
    assert outcome.problem["code"] == code
    assert outcome.problem["hint"]


def test_owner_of_an_endpoint_is_respected(line: BusLine) -> None:
    line("endpoints", "add", "team.me", "--owner", "ann")
    outcome = line("endpoints", "add", "team.me", "--owner", "bob", "--json")
    assert outcome.problem["code"] == "endpoint_owned"
    (entry,) = line.lines("endpoints")
    assert (entry["subject"], entry["owner"], entry["depth"]) == ("team.me", "ann", 0)
    assert entry["mailbox"] == hash_of("team.me")


def test_endpoint_with_mail_is_removed_by_force_only(line: BusLine) -> None:
    line("endpoints", "add", "a.b")
    line("pub", "a.b", "1")
    assert line("endpoints", "remove", "a.b").exit == 1
    assert line("endpoints", "remove", "a.b", "--force").exit == 0
    assert line.lines("endpoints") == []


def test_rules_are_added_listed_in_order_and_removed(line: BusLine) -> None:
    line("endpoints", "add", "team.lead")
    line("access", "add", ">", "team.>", "deny")
    line("access", "add", "guest.ann", "team.lead", "allow", "--priority", "5")
    assert [rule["action"] for rule in line.lines("access")] == ["allow", "deny"]
    assert line("pub", "team.lead", "1", "--from", "guest.ann").exit == 0
    refused = line("pub", "team.lead", "1", "--from", "guest.bob", "--json")
    assert (refused.exit, refused.value["rejected"][0]["reason"]) == (1, "access_denied")
    assert line("access", "remove", ">", "team.>").exit == 0
    assert line("pub", "team.lead", "1", "--from", "guest.bob").exit == 0


def test_broken_rule_file_is_reported(line: BusLine) -> None:
    line("endpoints", "add", "a.b")
    (line.root / "access-rules.json").write_text("[")
    outcome = line("access", "--json")
    assert (outcome.exit, outcome.problem["code"]) == (1, "access_rules_invalid")
    assert line("pub", "a.b", "1").exit == 1


async def leave_letters(root: Path, *subjects: str) -> None:
    """Leave a dead letter of a failed handler in each endpoint, and its breaker open."""
    one = Reliability(circuit_breaker=CircuitBreaker(failure_threshold=1))

    def fail(envelope: Any) -> None:
        raise ConnectionError(f"no line to {envelope.subject}")

    async with Bus(root, reliability=one) as bus:
        for subject in subjects:
            await bus.register_endpoint(subject)
            end = await bus.subscribe(subject, fail)
            await bus.publish(subject, "work", from_="c")
            await settled(bus, subject)
            await end()


def test_all_dead_letters_of_an_endpoint_are_requeued_once_its_breaker_is_closed(line: BusLine) -> None:
    asyncio.run(leave_letters(line.root, "jobs.one", "jobs.two"))
    refused = line("dead", "requeue", "--endpoint", "jobs.one")
    assert refused.exit == 1
    assert "0 dead letters requeued" in refused.out
    assert "the breaker of jobs.one is open: repeat with --reset-breakers" in refused.out
    done = line("dead", "requeue", "--endpoint", "jobs.one", "--reset-breakers", "--json")
    assert (done.exit, done.value["requeued"], done.value["kept"]) == (0, 1, {})
    assert [letter["subject"] for letter in line.lines("dead")] == ["jobs.two"]
    assert [mail["payload"] for mail in line.lines("inbox", "jobs.one")] == ["work"]


def test_dead_letters_are_requeued_by_their_reason(line: BusLine) -> None:
    asyncio.run(leave_letters(line.root, "jobs.one", "jobs.two"))
    done = line("dead", "requeue", "--all", "--reason", "no line to jobs.two", "--reset-breakers", "--json")
    assert (done.exit, done.value["requeued"]) == (0, 1)
    assert [letter["subject"] for letter in line.lines("dead")] == ["jobs.one"]


@pytest.mark.parametrize("words", [(), ("jobs.one",), ("--reason", "x"), ("jobs.one", "--all")])
def test_requeue_that_names_no_dead_letters_is_a_usage_error(line: BusLine, words: tuple[str, ...]) -> None:
    outcome = line("dead", "requeue", *words)
    assert outcome.exit == 2
    assert "--endpoint" in outcome.err


def test_dead_letters_are_listed_requeued_and_purged(line: BusLine) -> None:
    sent = line("pub", "late.one", '"hello"', "--json").value
    (letter,) = line.lines("dead")
    assert (letter["id"], letter["subject"]) == (sent["message_id"], "late.one")
    assert "late.one" in line("dead").out
    line("endpoints", "add", "late.one")
    assert line("dead", "requeue", "late.one", letter["id"]).exit == 0
    assert [mail["payload"] for mail in line.lines("inbox", "late.one")] == ["hello"]
    line("pub", "no.one", "1")
    assert line("dead", "purge", "--json").value == {"removed": 0}
    assert line("dead", "purge", "--older-than", "0", "--json").value == {"removed": 1}


def test_full_dead_letters_are_shown_where_an_operator_looks(line: BusLine) -> None:
    asyncio.run(leave_letters(line.root, "jobs.one"))
    (line.root / "config.json").write_text('{"reliability": {"deadLetters": {"maxLetters": 1, "maxBytes": 100}}}')
    line("pub", "no.one", '"hello"')
    assert "jobs.one refuses new mail: backpressure: dead letters full (1/1)" in line("dead").err
    assert "dead letters of jobs.one, accepted" in line("metrics").out
    (box,) = line("metrics", "--json").value["dead_letters"]
    assert (box["subject"], box["refused"], box["failed"]) == ("jobs.one", 0, 1)
    assert "deadLetters.maxLetters" in line("limits").out


def test_metrics_and_rebuild_count_the_same_messages(line: BusLine) -> None:
    line("endpoints", "add", "a.b")
    for number in range(3):
        line("pub", "a.b", str(number))
    before = line("metrics", "--json").value
    assert before["by_status"]["new"] == 3
    assert line("rebuild", "--json").value["messages"] == 3
    assert line("metrics", "--json").value == before
    assert "subject a.b" in line("metrics").out


def test_breakers_are_listed_and_reset(line: BusLine) -> None:
    asyncio.run(open_breaker(line.root))
    (breaker,) = line.lines("breakers")
    assert (breaker["subject"], breaker["circuit"]) == ("a.b", "OPEN")
    assert line("breakers", "reset", "a.b").exit == 0
    assert line.lines("breakers")[0]["circuit"] == "CLOSED"


async def open_breaker(root: Path) -> None:
    from tests.bus.limits import fail_until_open
    from tests.bus.listening import Recorder

    async with Bus(root) as bus:
        await bus.register_endpoint("a.b")
        await bus.subscribe("a.b", Recorder(fails=True))
        await fail_until_open(bus, "a.b")


def test_top_shows_depths_rates_breakers_and_the_last_messages(line: BusLine) -> None:
    line("endpoints", "add", "a.b", "--owner", "ann")
    for number in range(4):
        line("pub", "a.b", json.dumps({"number": number}))
    line("pub", "no.one", "1")
    seen = line("top", "--once", "--json").value
    (mailbox,) = seen["mailboxes"]
    assert (mailbox["subject"], mailbox["depth"], mailbox["circuit"]) == ("a.b", 4, "CLOSED")
    assert seen["rates"]["published"] >= 0.4
    assert seen["dead_letters"] == 1
    assert seen["recent"][0]["kind"] == "dead"
    assert seen["recent"][1]["text"] == '{"number": 3}'
    shown = line("top", "--once").out
    assert "a.b" in shown
    assert '{"number": 3}' in shown


def test_top_of_an_empty_bus_is_no_failure(line: BusLine) -> None:
    assert line("top", "--once").exit == 0
    assert line("top", "--once", "--json").value["mailboxes"] == []


def test_top_repeats_until_its_time_is_over(line: BusLine) -> None:
    assert len(line.lines("top", "--interval", "0.05", "--for", "0.3")) >= 2


def test_tap_shows_messages_and_consumes_nothing(line: BusLine, started: list[subprocess.Popen[str]]) -> None:
    line("endpoints", "add", "a.b")
    tap = start(started, line.root, "tap", ">", "--count", "3")
    for number in range(3):
        assert line("pub", "a.b", str(number), "--from", "c.d").exit == 0
    out, _ = tap.communicate(timeout=DEADLINE_S)
    assert tap.returncode == 0
    assert [text.split("  ")[1:] for text in out.splitlines()] == [["c.d -> a.b", str(n)] for n in range(3)]
    assert Mailbox(line.root, "a.b").depth == 3


def test_top_shows_the_message_in_work_and_its_age(line: BusLine, started: list[subprocess.Popen[str]]) -> None:
    line("endpoints", "add", "a.b")
    line("pub", "a.b", "1")
    serve = start(started, line.root, "serve", "a.b", "--run", "sh -c 'exec sleep 60 2> /dev/null'")
    asyncio.run(eventually_filled(line.root / "mailboxes" / hash_of("a.b") / "cur"))
    (mailbox,) = line("top", "--once", "--json").value["mailboxes"]
    serve.send_signal(signal.SIGINT)  # so that it ends its program too
    serve.wait(DEADLINE_S)
    assert mailbox["in_work"] == 1
    assert 0 <= mailbox["in_work_s"] <= DEADLINE_S
    row = MailboxState("a.b", None, 1, 1, 75, "CLOSED", 0)
    assert [str(cell) for cell in mailbox_row(row)][2] == "1, 75 s"


def test_time_of_a_program_that_serves_is_set_by_a_flag(line: BusLine, started: list[subprocess.Popen[str]]) -> None:
    line("endpoints", "add", "slow.one")
    line("pub", "slow.one", "1")
    start(started, line.root, "serve", "slow.one", "--run", "sleep 60", "--handler-timeout-s", "0.1")
    folder = line.root / "mailboxes" / hash_of("slow.one") / "failed"
    asyncio.run(eventually_filled(folder))
    (letter,) = line.lines("dead")
    assert letter["reason"] == "handler exceeded 0.1 s"


async def eventually_filled(folder: Path) -> None:
    await eventually(lambda: list(folder.iterdir()))


def test_served_endpoint_runs_a_program_per_message(line: BusLine, started: list[subprocess.Popen[str]]) -> None:
    program = f"{shlex.quote(sys.executable)} -c 'import json,sys; print(json.load(sys.stdin)[\"n\"] * 2)'"
    serve = start(started, line.root, "serve", "math.double", "--run", program, "--count", "2")
    assert line("req", "math.double", '{"n": 21}', "--json").value["payload"] == 42
    assert line("req", "math.double", '{"n": 4}').out.strip() == "8"
    serve.communicate(timeout=DEADLINE_S)
    assert serve.returncode == 0
    assert Mailbox(line.root, "math.double").depth == 0


def test_message_whose_program_fails_is_a_dead_letter(line: BusLine, started: list[subprocess.Popen[str]]) -> None:
    serve = start(started, line.root, "serve", "a.b", "--run", "false", "--for", "20")
    line("pub", "a.b", "1")
    box = Mailbox(line.root, "a.b")

    async def wait() -> None:
        from tests.bus.waiting import eventually

        await eventually(lambda: box.failed)

    asyncio.run(wait())
    serve.send_signal(signal.SIGINT)
    serve.communicate(timeout=DEADLINE_S)
    assert serve.returncode == 130
    assert "exit code 1" in box.failed[0]["reason"]


def test_interrupt_of_a_tap_ends_quietly(line: BusLine, started: list[subprocess.Popen[str]]) -> None:
    tap = start(started, line.root, "tap", ">")
    tap.send_signal(signal.SIGINT)
    out, err = tap.communicate(timeout=DEADLINE_S)
    assert (tap.returncode, out, err) == (130, "", "")


def test_received_text_cannot_control_the_terminal(line: BusLine) -> None:
    line("endpoints", "add", "a.b")
    line("pub", "a.b", json.dumps("\x1b[2Jgone"))
    assert "\x1b[2J" not in line("inbox", "a.b").out
    assert "\x1b[2J" not in line("top", "--once").out


def test_directory_is_taken_from_the_environment(
    line: BusLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTHOUSE_BUS_DIR", str(line.root))
    cli = CommandLine(line.root.parent / "home", capsys)
    assert cli("bus", "endpoints", "add", "a.b").exit == 0
    assert len(line.lines("endpoints")) == 1


def test_symlinked_directory_is_refused(line: BusLine) -> None:
    (line.root.parent / "real").mkdir(mode=0o700)
    line.root.symlink_to(line.root.parent / "real")
    outcome = line("endpoints", "--json")
    assert (outcome.exit, outcome.problem["code"]) == (5, "store_path_unsafe")
