"""`posthouse daemon outbox` on a daemon whose relay is not there: everything waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine, Outcome
from tests.faults.daemon_process import DaemonProcess

pytestmark = pytest.mark.xdist_group("cli-daemon")
BOB = "ed25519:29acbae141bccaf0b22e1a94d34d0bc7361e526d0bfe12c89794bc9322966dd7"
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("o"), "http://127.0.0.1:1") as running:
        yield running


@pytest.fixture
def run(cli: CommandLine, daemon: DaemonProcess) -> Run:
    return lambda *tokens: cli(*tokens, "--dir", str(daemon.directory), "--json")


def queue(run: Run, text: str) -> str:
    """Send something that waits; return the id of its row."""
    row_id: str = run("send", BOB, text).value["id"]
    return row_id


def rows(run: Run, *flags: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("daemon", "outbox", "list", *flags).value["items"]
    return found


def test_waiting_rows_are_listed_newest_first_with_their_destination(run: Run) -> None:
    first, second = queue(run, "one"), queue(run, "two")
    newest = rows(run, "--pending", "--limit", "2")
    assert [row["id"] for row in newest] == [second, first]
    assert {(row["status"], row["destination"]) for row in newest} == {("pending", BOB)}
    assert rows(run, "--done") == rows(run, "--failed") == []


def test_two_states_at_once_are_a_usage_error(run: Run) -> None:
    assert run("daemon", "outbox", "list", "--done", "--pending").exit == Exit.USAGE


def test_requeue_aborts_the_row_and_names_its_successor(run: Run, tmp_path: Path) -> None:
    row_id = queue(run, "misspelt")
    patch = tmp_path / "patch.txt"
    patch.write_text("spelt well")
    made = run(
        "daemon", "outbox", "requeue", row_id, "--new-client-id", f"new-{row_id}", "--patch-payload", str(patch)
    ).value
    assert (made["aborted_row_id"], made["new_client_message_id"]) == (row_id, f"new-{row_id}")
    again = run("daemon", "outbox", "requeue", made["new_row_id"], "--auto").value
    found = run("daemon", "outbox", "inspect", again["new_row_id"]).value
    assert [row["id"] for row in found["chain"]] == [row_id, made["new_row_id"], again["new_row_id"]]
    assert [row["status"] for row in found["chain"]] == ["aborted", "aborted", "pending"]
    assert found["chain"][0]["aborted_by"] == "operator"


def test_requeue_under_an_id_that_is_taken_changes_nothing(run: Run) -> None:
    row_id, other = queue(run, "a"), queue(run, "b")
    taken = run("daemon", "outbox", "inspect", other).value["row"]["client_message_id"]
    refused = run("daemon", "outbox", "requeue", row_id, "--new-client-id", taken)
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "idempotency_key_reused")
    assert run("daemon", "outbox", "inspect", row_id).value["row"]["status"] == "pending"


def test_requeue_needs_to_know_the_new_id(run: Run) -> None:
    assert run("daemon", "outbox", "requeue", "x").exit == Exit.USAGE
    assert run("daemon", "outbox", "requeue", "x", "--auto", "--new-client-id", "y").exit == Exit.USAGE


def test_patch_that_cannot_be_read_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    flags = ("--auto", "--patch-payload", str(tmp_path / "none"))
    assert run("daemon", "outbox", "requeue", "x", *flags).exit == Exit.USAGE


def test_dropped_row_is_aborted_for_good(run: Run) -> None:
    row_id = queue(run, "never mind")
    assert run("daemon", "outbox", "drop", row_id).value == {"aborted_row_id": row_id}
    assert row_id in [row["id"] for row in rows(run, "--aborted")]
    refused = run("daemon", "outbox", "drop", row_id)
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "outbox_row_state")
    assert "is aborted" in refused.problem["detail"]


def test_unknown_row_is_refused(run: Run) -> None:
    assert run("daemon", "outbox", "inspect", "nothing").problem["code"] == "outbox_row_unknown"
