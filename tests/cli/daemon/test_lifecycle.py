"""up, down, status, logs, accept-host, remint and recover, with daemons that detach for real."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.daemon import DaemonClient
from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine, Outcome
from tests.cli.daemon.hosts import Hosts
from tests.faults.daemon_process import DaemonProcess

pytestmark = pytest.mark.xdist_group("cli-daemon")
NOWHERE = "127.0.0.1:1"  # no relay: a daemon needs none to be up
BOB = "ed25519:29acbae141bccaf0b22e1a94d34d0bc7361e526d0bfe12c89794bc9322966dd7"


class Place:
    """A daemon's directory, and commands about it."""

    def __init__(self, cli: CommandLine, directory: Path) -> None:
        self.directory = directory
        self._cli = cli

    def run(self, *tokens: str) -> Outcome:
        return self._cli(*tokens, "--dir", str(self.directory), "--json")

    def up(self, *tokens: str) -> Outcome:
        return self.run("daemon", "up", "--persistent", "--relay", NOWHERE, *tokens)

    def value(self, *tokens: str) -> Any:
        outcome = self.run(*tokens)
        assert outcome.exit == 0, outcome.err
        return outcome.value

    def spoil_fingerprint(self) -> None:
        path = self.directory / "main" / "host_fingerprint.json"
        content = json.loads(path.read_text()) | {"fingerprint": "0" * 64, "host": "1" * 64}
        path.write_text(json.dumps(content))


@pytest.fixture
def place(cli: CommandLine, tmp_path: Path) -> Iterator[Place]:
    made = Place(cli, tmp_path / "d")
    yield made
    made.run("daemon", "down")


def test_daemon_detaches_answers_and_ends(place: Place) -> None:
    answer = place.up().value
    assert answer["pid"] != os.getpid()
    assert place.value("daemon", "status")["node"] == answer["node"]
    assert place.value("daemon", "version")["ipc_api"] == 1
    assert place.value("daemon", "down") == {"stopped": True, "pid": answer["pid"]}
    assert place.run("daemon", "status").exit == Exit.UNREACHABLE
    assert place.value("daemon", "down") == {"stopped": False, "pid": None}


def test_second_start_finds_the_daemon_that_runs(place: Place) -> None:
    first = place.up().value
    again = place.up()
    assert (again.exit, again.value["pid"], again.value["node"]) == (0, first["pid"], first["node"])
    for refused in (place.up("--foreground"), place.run("daemon", "up", "--ephemeral", "--relay", NOWHERE)):
        assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "daemon_running")
    assert place.value("daemon", "status")["node"] == first["node"]


def test_daemon_keeps_its_identity_and_its_relay_over_a_restart(place: Place) -> None:
    first = place.up().value
    place.run("daemon", "down")
    again = place.run("daemon", "up", "--persistent").value
    assert (again["node"], again["relay"]) == (first["node"], f"http://{NOWHERE}")


def test_another_relay_is_noted_unless_somebody_wrote_the_file(place: Place) -> None:
    place.up()
    place.run("daemon", "down")
    config = place.directory / "main" / "config.toml"
    place.run("daemon", "up", "--persistent", "--relay", "127.0.0.1:2")
    place.run("daemon", "down")
    assert 'relay = "http://127.0.0.1:2"' in config.read_text()
    config.write_text('[client]\nrelay = "127.0.0.1:3"\n[outbox]\nmax_age_h = 5\n')
    place.up()
    assert "127.0.0.1:3" in config.read_text()


def test_all_files_are_private(place: Place) -> None:
    place.up()
    files = [path for path in place.directory.rglob("*") if not path.is_dir()]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert {"pid", "sock", "local_token", "keypair.json", "outbox.db", "inbox.db", "schema_version"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes
    for folder in (place.directory, place.directory / "main"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_logs_are_shown_without_a_daemon_and_hold_no_secret(place: Place) -> None:
    place.up()
    token = (place.directory / "local_token").read_text().strip()
    seed = json.loads((place.directory / "main" / "keypair.json").read_text())
    place.run("daemon", "down")
    outcome = place.run("daemon", "logs")
    entries = [json.loads(line) for line in outcome.out.splitlines()]
    assert {"daemon_started", "daemon_stopped"} <= {entry["event"] for entry in entries}
    assert token not in outcome.out
    assert not any(value in outcome.out for value in _secrets(seed))


def _secrets(content: Any) -> list[str]:
    return [
        value for name, value in content.items() if isinstance(value, str) and name in ("seed", "secret", "private")
    ]


def test_identity_of_another_machine_is_refused_until_it_is_accepted(place: Place) -> None:
    node = place.up().value["node"]
    place.run("daemon", "down")
    place.spoil_fingerprint()
    refused = place.up()
    assert (refused.exit, refused.problem["code"]) == (Exit.IDENTITY, "host_changed")
    assert "accept-host" in refused.problem["hint"] and "remint" in refused.problem["hint"]
    assert place.value("daemon", "accept-host")["accepted"] is True
    assert place.up().value["node"] == node


@pytest.mark.parametrize("policy", ["warn", "allow"])
def test_policy_lets_an_identity_of_another_machine_start(place: Place, policy: str) -> None:
    place.up()
    place.run("daemon", "down")
    place.spoil_fingerprint()
    assert place.up("--policy", policy).exit == 0


def test_remint_makes_another_identity_but_not_while_messages_wait(place: Place) -> None:
    node = place.up().value["node"]
    place.value("send", BOB, "unsent")
    running = place.run("daemon", "remint")
    assert (running.exit, running.problem["code"]) == (Exit.REFUSED, "daemon_running")
    place.run("daemon", "down")
    refused = place.run("daemon", "remint")
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "remint_pending")
    answer = place.value("daemon", "remint", "--abort-pending")
    assert answer["before"] == node != answer["node"]
    assert place.up().value["node"] == answer["node"]


def test_damaged_outbox_is_refused_and_recovered(place: Place) -> None:
    place.up()
    place.value("send", BOB, "keep me")
    place.run("daemon", "down")
    outbox = place.directory / "main" / "outbox.db"
    data = bytearray(outbox.read_bytes())
    data[:100] = bytes(100)
    outbox.write_bytes(data)
    refused = place.up()
    assert (refused.exit, refused.problem["code"]) == (Exit.BROKEN, "outbox_corrupt")
    assert "daemon recover" in refused.problem["hint"]
    assert outbox.read_bytes() == bytes(data), "a damaged outbox is left as it is"
    answer = place.value("daemon", "recover")
    assert Path(answer["aside"]).read_bytes() == bytes(data)
    assert place.up().exit == 0


def test_ephemeral_daemon_keeps_no_key_and_ends_in_time(place: Place) -> None:
    answer = place.run("daemon", "up", "--ephemeral", "--ttl", "1s", "--relay", NOWHERE).value
    assert answer["is_ephemeral"] is True
    assert not (place.directory / "main" / "keypair.json").exists()
    _await_end(answer["pid"])


def _await_end(pid: int) -> None:
    _, status = os.waitpid(pid, 0)  # the child of this process, since the command line runs inside it
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(
    "flags",
    [("--ttl", "2h"), ("--ephemeral", "--ttl", "2 hours"), ("--ephemeral", "--persistent"), ("--policy", "maybe")],
)
def test_options_that_make_no_sense_are_usage_errors(cli: CommandLine, tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert cli("daemon", "up", "--dir", str(tmp_path / "d"), *flags).exit == Exit.USAGE
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("verb", ["accept-host", "remint", "recover", "logs"])
def test_commands_about_a_directory_say_when_there_is_none(cli: CommandLine, tmp_path: Path, verb: str) -> None:
    assert cli("daemon", verb, "--dir", str(tmp_path / "none")).exit == Exit.USAGE
    assert not (tmp_path / "none").exists()


def test_of_two_daemons_with_one_key_the_older_ends_with_exit_code_4(hosts: Hosts, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "one", hosts.relay.url) as older:
        (tmp_path / "two").mkdir(mode=0o700)
        shutil.copytree(older.directory, tmp_path / "two" / "d", ignore=shutil.ignore_patterns("sock", "*.lock"))
        _await_connected(older)
        with DaemonProcess(tmp_path / "two", hosts.relay.url) as newer:
            assert newer.node == older.node
            assert older.child.wait(60) == Exit.IDENTITY
            assert "mailbox_replaced" in older.child.errors
            _await_connected(newer)


def _await_connected(daemon: DaemonProcess) -> None:
    with DaemonClient(daemon.directory) as client:
        for _ in range(600):
            if client.health().connected:
                return
            time.sleep(0.05)  # the connection may have come up before the test could listen for it
    raise AssertionError("the daemon did not reach its relay")


def test_status_and_doctor_say_how_far_the_clock_is_from_the_relays(
    cli: CommandLine, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = tmp_path / "clock.json"
    offsets.write_text(json.dumps({"wall_offset_ns": 100_000 * 10**9}))
    monkeypatch.setenv("POSTHOUSE_TEST_CLOCK", str(offsets))
    directory = cli.home / "daemon" / "main"
    assert cli("daemon", "up", "--persistent", "--no-tcp", "--relay", hosts.relay.url).exit == 0
    try:
        with DaemonClient(directory) as daemon:
            ends_at = time.monotonic() + 60
            while daemon.health().clock_difference_s is None and time.monotonic() < ends_at:
                time.sleep(0.02)
        status = cli("daemon", "status")
        assert re.search("this clock differs by (99999|10000[01]) s from the relay's", status.out + status.err)
        findings = cli("doctor", "--json").value["checks"]
        clocks = [each for each in findings if each["name"] == "clock" and "differs" in each["text"]]
        assert [each["state"] for each in clocks] == ["fail"]
    finally:
        cli("daemon", "down")


def test_doctor_is_green_after_a_daemon_ran_and_everything_in_the_home_is_private(
    cli: CommandLine, hosts: Hosts
) -> None:
    assert cli("keys", "new").exit == 0
    for _ in range(2):
        assert cli("daemon", "up", "--persistent", "--relay", hosts.relay.url).exit == 0
        running = cli("doctor", "--json")
        assert cli("daemon", "down").exit == 0
        stopped = cli("doctor", "--json")
        for outcome in (running, stopped):
            failed = [each for each in outcome.value["checks"] if each["state"] == "fail"]
            assert failed == []
        files = [path for path in cli.home.rglob("*") if not path.is_symlink()]
        assert {stat.S_IMODE(path.lstat().st_mode) for path in files} == {0o600, 0o700}


def test_hooks_of_the_settings_file_run_in_the_daemon(cli: CommandLine, place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hook = (
        f'[[hook]]\nname = "h"\nevent = "received"\ncommand = "echo $POSTHOUSE_AGENT > {out}.new; mv {out}.new {out}"\n'
    )
    cli.home.mkdir(mode=0o700, exist_ok=True)
    (cli.home / "config.toml").write_text(hook)
    assert place.up().exit == 0
    for name in ("sender", "reader"):
        assert place.run("agent", "add", name).exit == 0
    assert place.run("send", "reader", "hello", "--agent", "sender").exit == 0
    deadline = time.monotonic() + 30
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert out.read_text() == "reader\n"
