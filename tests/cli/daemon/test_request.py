"""`posthouse request` between two real hosts: answers, partial answers, refusals and exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from posthouse.client.daemon import DaemonClient
from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine
from tests.cli.daemon.hosts import Hosts

pytestmark = pytest.mark.xdist_group("cli-daemon")


def answering(hosts: Hosts, answer: Callable[[DaemonClient, Any], None]) -> threading.Thread:
    """Let bob answer the next request, in a thread."""

    def serve() -> None:
        with DaemonClient(hosts.bob.directory) as bob:
            [item] = bob.wait(30, reader="requests")
            answer(bob, item)

    with DaemonClient(hosts.bob.directory) as bob:  # what came before is no request of this test
        bob.wait(0.1, reader="requests")
    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def reply(*answers: tuple[str, str | None]) -> Callable[[DaemonClient, Any], None]:
    def send(bob: DaemonClient, item: Any) -> None:
        for text, state in answers:
            bob.send("alice", text, reply_to_id=item.message_id, answer=state)

    return send


def test_a_request_prints_partial_answers_and_the_final_one(cli: CommandLine, hosts: Hosts) -> None:
    bob = answering(hosts, reply(("compiling", "partial"), ("it does", None)))
    outcome = cli("request", "bob", "does it build?", "--timeout", "30s", "--dir", str(hosts.alice.directory))
    bob.join()
    assert (outcome.exit, outcome.out) == (0, "compiling\nit does\n")


def test_json_has_each_answer_with_its_state(cli: CommandLine, hosts: Hosts) -> None:
    bob = answering(hosts, reply(("compiling", "partial"), ("it does", None)))
    outcome = cli("request", "bob", "?", "--timeout", "30s", "--dir", str(hosts.alice.directory), "--json")
    bob.join()
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    assert [(each["state"], each["body"]) for each in answers] == [("partial", "compiling"), ("final", "it does")]


@pytest.mark.parametrize(
    ("state", "code", "end"),
    [("busy", "responder_busy", Exit.UNREACHABLE), ("failed", "request_failed", Exit.REFUSED)],
)
def test_a_refusal_of_the_responder_has_its_reason_and_an_exit_code(
    cli: CommandLine, hosts: Hosts, state: str, code: str, end: Exit
) -> None:
    bob = answering(hosts, reply(("the disk is full", state)))
    outcome = cli("request", "bob", "?", "--timeout", "30s", "--dir", str(hosts.alice.directory), "--json")
    bob.join()
    assert (outcome.exit, outcome.problem["code"]) == (end, code)
    assert "the disk is full" in outcome.problem["detail"]


def test_no_answer_in_time_and_mistakes_are_refused(cli: CommandLine, hosts: Hosts) -> None:
    where = ("--dir", str(hosts.alice.directory), "--json")
    late = cli("request", "bob", "?", "--timeout", "1s", *where)
    assert (late.exit, late.problem["code"]) == (Exit.UNREACHABLE, "request_timeout")
    assert cli("request", "bob", "?", "--timeout", "soon", *where).problem["code"] == "usage"
    assert cli("request", "bob", "?", "--timeout", "2h", *where).problem["code"] == "value_invalid"
    assert cli("request", "nobody-here", "?", *where).problem["code"] == "member_name_unknown"
