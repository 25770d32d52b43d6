"""Whether a daemon runs: the kernel says so, and a daemon that is slow to answer is not taken for an absent one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.client.daemon.locate import DaemonAddress, DaemonState, daemon_state
from posthouse.daemon.directory import DaemonDirectory
from posthouse.files import locked, open_locked
from posthouse.keys import NodeKey
from tests.faults.child import Child

WAIT_S = 60


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket where a daemon has its own, and nothing that answers."""
    (tmp_path / "d").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "d" / "sock"))
        made.listen()
        made.settimeout(WAIT_S)
        yield made


def test_listener_that_does_not_answer_is_a_running_daemon(tmp_path: Path, listener: socket.socket) -> None:
    assert daemon_state(DaemonAddress(tmp_path / "d")) is DaemonState.LISTENING


def test_socket_that_a_killed_daemon_left_is_no_daemon(tmp_path: Path, listener: socket.socket) -> None:
    listener.close()
    assert daemon_state(DaemonAddress(tmp_path / "d")) is DaemonState.ABSENT


def test_held_lock_without_a_socket_is_a_daemon_that_starts(tmp_path: Path) -> None:
    assert daemon_state(DaemonAddress(tmp_path)) is DaemonState.ABSENT
    with locked(tmp_path / "daemon.lock"):
        assert daemon_state(DaemonAddress(tmp_path)) is DaemonState.WITHOUT_SOCKET
    assert daemon_state(DaemonAddress(tmp_path)) is DaemonState.ABSENT


def test_send_waits_for_a_slow_daemon_and_does_not_go_to_the_relay_itself(
    tmp_path: Path, listener: socket.socket
) -> None:
    env = {"POSTHOUSE_HOME": str(tmp_path / "home")}
    words = (
        "send",
        NodeKey.generate().node,
        "hello",
        "--dir",
        tmp_path / "d",
        "--relay",
        "http://127.0.0.1:9",
        "--json",
    )
    with Child("posthouse.cli.main", *words, env=env) as send:
        asked = b""
        while not asked:  # it may look whether there is a listener first
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                while part := connection.recv(65_536):
                    asked += part
                    if asked.endswith(b"}"):
                        break
                if asked:
                    body = json.dumps({"client_message_id": "m-1", "status": "queued"}).encode()
                    connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        listener.close()  # the message is accepted: whatever the command asks afterwards must not make it fail
        assert asked.startswith(b"POST /v1/send ")
        assert send.wait(WAIT_S) == 0, send.errors
    assert json.loads(send.lines[0])["via"] == "daemon"


def test_daemon_starts_although_a_command_asks_at_that_moment_if_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = open_locked(tmp_path / "daemon.lock", exclusive=False)
    monkeypatch.setattr("posthouse.daemon.directory.time.sleep", lambda _seconds: os.close(held))
    DaemonDirectory(tmp_path).lock().close()
