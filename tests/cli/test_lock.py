"""`posthouse lock` against a real relay, as processes.

Leases end when a test steps the clock of all processes, so that no lease ends because the machine is busy.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.faults.relay_process import RelayProcess
from tests.forked import Forked, run_forked

PATIENCE_S = 60
LEASE_S = 30  # real seconds in which a holder is never late; a run ends its command a 25th of it after the lease
COMMAND = ("posthouse.cli.main", "lock")


class Shell:
    """Command lines of one user."""

    def __init__(self, relay: RelayProcess, home: Path) -> None:
        self.relay = relay
        self.environ = os.environ | relay.environ
        self.environ |= {"POSTHOUSE_HOME": str(home), "POSTHOUSE_CLIENT_RELAY": relay.url}
        run_forked("posthouse.cli.main", "keys", "new", timeout=PATIENCE_S, env=self.environ).check_returncode()
        self._started: list[Forked] = []

    def start(self, *tokens: str) -> Forked:
        process = Forked(*COMMAND, *tokens, env=self.environ)
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left behind."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=PATIENCE_S)

    def run(self, *tokens: str) -> subprocess.CompletedProcess[str]:
        return run_forked(*COMMAND, *tokens, timeout=PATIENCE_S, env=self.environ)

    def value(self, *tokens: str) -> dict[str, Any]:
        """Return what a command answers as JSON."""
        done = self.run(*tokens, "--json")
        assert done.returncode == 0, done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def problem(self, *tokens: str) -> dict[str, Any]:
        """Return why a command was refused."""
        done = self.run(*tokens, "--json")
        assert done.returncode != 0 and done.stdout == ""
        value: dict[str, Any] = json.loads(done.stderr)
        return value


class Clock:
    """The clock that the relay and all commands share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset_ns = 0

    def step(self, seconds: int) -> None:
        """Set it forward; its readers find the old time or the new one."""
        self._offset_ns += seconds * 10**9
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"wall_offset_ns": self._offset_ns, "boot_offset_ns": self._offset_ns}))
        new.rename(self.path)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock.json")


@pytest.fixture
def relay(tmp_path: Path, clock: Clock) -> Iterator[RelayProcess]:
    relay = RelayProcess(tmp_path / "relay")
    relay.environ["POSTHOUSE_TEST_CLOCK"] = str(clock.path)
    with relay:
        yield relay


@pytest.fixture
def alice(relay: RelayProcess, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(relay, tmp_path / "alice")
    yield shell
    shell.close()


@pytest.fixture
def bob(relay: RelayProcess, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(relay, tmp_path / "bob")
    yield shell
    shell.close()


def wait_for(path: Path) -> str:
    """Return what a command has written to a file, once it has."""
    for _ in range(PATIENCE_S * 100):
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text().strip()
        time.sleep(0.01)
    raise AssertionError(f"{path} was never written")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    for _ in range(PATIENCE_S * 100):
        if not is_running(pid):
            return
        time.sleep(0.01)
    raise AssertionError(f"the process {pid} still runs")


def test_lock_is_acquired_renewed_inspected_listed_and_released(alice: Shell, bob: Shell) -> None:
    grant = alice.value("acquire", "db/main", "--lease-s", "60", "--request-id", "q1")
    assert (grant["resource"], grant["token"], grant["lease_ms"]) == ("db/main", 1, 60_000)
    assert alice.value("acquire", "db/main", "--lease-s", "60", "--request-id", "q1") == grant
    refusal = bob.problem("acquire", "db/main")
    assert (refusal["code"], refusal["holder"]) == ("held", grant["owner"])
    assert alice.value("renew", "db/main", "1", "--lease-s", "90")["lease_ms"] == 90_000
    status = bob.value("inspect", "db/main")
    assert (status["held"], status["token"], status["owner"]) == (True, 0, grant["owner"])
    assert alice.value("inspect", "db/main")["token"] == 1
    assert [lock["resource"] for lock in bob.value("ls", "--held")["locks"]] == ["db/main"]
    assert bob.problem("release", "db/main", "1")["code"] == "not_holder"
    assert alice.value("release", "db/main", "1")["released"] is True
    assert bob.value("ls", "--held")["locks"] == [] and len(bob.value("ls")["locks"]) == 1
    free = {"resource": "db/main", "held": False, "owner": None, "token": 1, "remaining_ms": 0, "waiting": 0}
    assert alice.value("inspect", "db/main") == free | {"holders": []}
    assert alice.value("ls")["locks"] == [free | {"mesh": "main", "mode": "exclusive", "tree": False, "session": ""}]
    shown = alice.run("inspect", "db/main")
    assert shown.stdout == "db/main  free  token 1\n"


def test_acquire_prints_its_session_and_another_one_of_the_same_key_is_held_off(alice: Shell) -> None:
    grant = alice.value("acquire", "db/main")
    assert "  session " in alice.run("acquire", "other").stdout
    assert alice.problem("acquire", "db/main")["code"] == "held"
    assert alice.problem("acquire", "db/main", "--session", grant["session"])["code"] == "held_by_self"
    token = str(grant["token"])
    assert alice.problem("release", "db/main", token, "--session", "not mine")["code"] == "not_holder"
    assert alice.value("renew", "db/main", token, "--session", grant["session"])["token"] == grant["token"]
    assert alice.value("release", "db/main", token)["released"] is True


def test_trees_sharing_and_several_locks_at_once(alice: Shell, bob: Shell) -> None:
    tree = alice.value("acquire", "src", "--tree", "--also", "docs")
    assert bob.problem("acquire", "src/api.py")["blocked_by"] == "src"
    assert bob.problem("acquire", "docs/index.md", "--also", "other")["code"] == "held"
    assert bob.value("inspect", "other")["held"] is False
    alice.value("release", "src", str(tree["token"]), "--also", "docs")
    bob.value("acquire", "src/api.py", "--shared")
    alice.value("acquire", "src/api.py", "--shared")
    assert len(bob.value("inspect", "src/api.py")["holders"]) == 2
    assert alice.problem("acquire", "src", "--tree")["code"] == "held"


def test_admin_breaks_a_lock_and_its_holder_can_no_longer_use_the_token(
    relay: RelayProcess, alice: Shell, bob: Shell
) -> None:
    held = alice.value("acquire", "db/main", "--lease-s", "60")
    token, admin = str(held["token"]), bob.value("acquire", "other")["owner"]
    assert bob.problem("break", "db/main")["code"] == "right_missing"
    relay.stop()
    relay.start("--admin", admin)
    done = bob.run("break", "db/main", "--token", token)
    assert done.stdout == f"db/main  broken  token {token}  held by {held['owner']}\n"
    assert bob.problem("break", "db/main")["code"] == "not_held"
    assert alice.problem("renew", "db/main", token)["code"] == "not_holder"
    assert bob.value("acquire", "db/main")["token"] > held["token"]


def test_watch_shows_the_lock_now_and_when_it_changes(alice: Shell, bob: Shell) -> None:
    watching = bob.start("watch", "db/main", "--count", "2", "--json")
    assert json.loads(watching.stdout.readline())["held"] is False
    owner = alice.value("acquire", "db/main")["owner"]
    rest, _ = watching.communicate(timeout=PATIENCE_S)
    assert json.loads(rest)["owner"] == owner and watching.returncode == 0


def test_run_of_the_same_key_waits_for_the_other(alice: Shell, tmp_path: Path) -> None:
    order, started, go = tmp_path / "order", tmp_path / "started", tmp_path / "go"
    first = f"echo on > {started}; until [ -e {go} ]; do sleep 0.05; done; echo first >> {order}"
    running = alice.start("run", "deploy", "--", "sh", "-c", first)
    wait_for(started)
    waiting = alice.start("run", "deploy", "--", "sh", "-c", f"echo second >> {order}")
    while alice.value("inspect", "deploy").get("waiting", 0) != 1:
        time.sleep(0.01)
    go.touch()
    for process in (running, waiting):
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert order.read_text() == "first\nsecond\n"


def test_run_gives_the_command_its_token_and_releases_afterwards(alice: Shell, bob: Shell) -> None:
    done = alice.run("run", "deploy", "--", "sh", "-c", 'echo "token $POSTHOUSE_FENCING_TOKEN $1"; exit 7', "sh", "--x")
    assert (done.returncode, done.stdout) == (7, "token 1 --x\n")
    status = alice.value("inspect", "deploy")
    assert (status["held"], status["token"]) == (False, 1)


def test_run_works_on_a_terminal_that_does_not_control_it(alice: Shell) -> None:
    """As below `script`, and in containers."""
    leader, follower = pty.openpty()
    words = [sys.executable, "-m", *COMMAND, "run", "deploy", "--", "echo", "done"]
    try:
        done = subprocess.run(
            words, env=alice.environ, stdin=follower, capture_output=True, text=True, timeout=PATIENCE_S
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_run_does_not_start_its_command_when_the_lock_is_held(alice: Shell, bob: Shell, tmp_path: Path) -> None:
    alice.value("acquire", "deploy", "--lease-s", "60")
    done = bob.run("run", "deploy", "--wait-s", "0.2", "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 1 and "held by" in done.stderr and not (tmp_path / "ran").exists()


def test_run_holds_the_lock_for_longer_than_one_lease(alice: Shell, bob: Shell, clock: Clock, tmp_path: Path) -> None:
    script = f"echo up >{tmp_path}/up; exec sleep 300"
    running = alice.start("run", "deploy", "--lease-s", str(LEASE_S), "--", "sh", "-c", script)
    wait_for(tmp_path / "up")
    for _ in range(2):  # each time past the moment of a renewal, together past the lease
        clock.step(LEASE_S * 2 // 3)
        while bob.value("inspect", "deploy")["remaining_ms"] < LEASE_S * 1000 // 2:
            assert running.poll() is None
    assert bob.problem("acquire", "deploy")["code"] == "held"
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 128 + signal.SIGTERM
    assert bob.value("acquire", "deploy")["token"] == 2


def test_run_ends_the_whole_command_when_the_lease_is_lost(
    relay: RelayProcess, alice: Shell, clock: Clock, tmp_path: Path
) -> None:
    """The command ignores SIGTERM and has a child of its own: both must be gone."""
    script = f"trap '' TERM; sleep 300 & echo $$ $! >{tmp_path}/pids; wait; wait"
    running = alice.start("run", "deploy", "--lease-s", str(LEASE_S), "--", "sh", "-c", script)
    pids = [int(pid) for pid in wait_for(tmp_path / "pids").split()]
    relay.kill()
    clock.step(LEASE_S)
    _, errors = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1 and "was lost" in errors
    for pid in pids:
        wait_until_gone(pid)


def test_run_that_was_stopped_beyond_its_lease_ends_its_command_when_it_goes_on(
    alice: Shell, bob: Shell, clock: Clock, tmp_path: Path
) -> None:
    script = f"echo $$ >{tmp_path}/pid; exec sleep 300"
    running = alice.start("run", "deploy", "--lease-s", str(LEASE_S), "--", "sh", "-c", script)
    pid = int(wait_for(tmp_path / "pid"))
    running.send_signal(signal.SIGSTOP)
    clock.step(LEASE_S)
    assert bob.value("acquire", "deploy", "--wait-s", "30", "--lease-s", "600")["token"] == 2
    assert is_running(pid)  # nothing can end it now: that is what the token is for
    running.send_signal(signal.SIGCONT)
    _, errors = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1 and "was lost" in errors
    wait_until_gone(pid)
    assert bob.value("inspect", "deploy")["token"] == 2


def test_command_does_not_outlive_a_killed_run(alice: Shell, tmp_path: Path) -> None:
    running = alice.start("run", "deploy", "--", "sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 300")
    pid = int(wait_for(tmp_path / "pid"))
    running.kill()
    running.communicate(timeout=PATIENCE_S)
    wait_until_gone(pid)
    assert alice.problem("acquire", "deploy")["code"] == "held"  # a restart waits for the lease


def test_command_does_not_begin_if_its_run_was_killed_before_the_kernel_knew(tmp_path: Path) -> None:
    wrapper, died = files("posthouse.cli").joinpath("lock_exec.py"), subprocess.Popen(["true"])
    died.wait(PATIENCE_S)
    started = [sys.executable, "-I", "-S", str(wrapper), str(died.pid), "2", "touch", str(tmp_path / "ran")]
    assert subprocess.run(started, timeout=PATIENCE_S).returncode == 128 + signal.SIGKILL
    assert not (tmp_path / "ran").exists()


def test_command_begins_with_the_signals_and_files_of_a_plain_one(alice: Shell) -> None:
    command = ["sh", "-c", "grep Sig.gn: /proc/self/status; ls /proc/self/fd"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert alice.run("run", "deploy", "--", *command).stdout == plain.stdout


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("deploy",), "after `--`"),
        (("deploy", "--", "/no/such/command"), "cannot be started"),
        (("deploy", "--", "/no/such/command"), "Check the name of the program"),
    ],
)
def test_run_without_a_command_that_starts_is_a_usage_error(alice: Shell, tokens: tuple[str, ...], words: str) -> None:
    done = alice.run("run", *tokens)
    assert done.returncode == 2 and words in done.stderr
