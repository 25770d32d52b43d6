"""Notifications to the service manager, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.service_manager import READY, feed_watchdog, notify, watchdog_s
from tests.faults.child import Child


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket like the one that systemd listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def received(manager: socket.socket) -> str:
    return manager.recv(1024).decode()


def test_a_state_reaches_the_manager_and_without_one_nothing_happens(manager: socket.socket) -> None:
    notify(READY, {"NOTIFY_SOCKET": manager.getsockname()})
    assert received(manager) == "READY=1"
    notify(READY, {})
    notify(READY, {"NOTIFY_SOCKET": "/nonexistent/notify"})  # logged, never raised


def test_an_abstract_socket_is_reached_too() -> None:
    name = f"posthouse-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(30)
        notify(READY, {"NOTIFY_SOCKET": "@" + name})
        assert received(listening) == "READY=1"


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_asks_this_process_only(environ: dict[str, str], interval_s: float | None) -> None:
    assert watchdog_s(environ) == interval_s


async def test_an_unhealthy_process_leaves_the_watchdog_unfed(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "3000")
    asked = asyncio.Semaphore(0)

    def is_healthy() -> bool:
        asked.release()
        return False

    feeding = asyncio.create_task(feed_watchdog(is_healthy))
    for _ in range(3):
        await asyncio.wait_for(asked.acquire(), 30)
    feeding.cancel()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(1024)


def test_a_relay_says_that_it_is_ready_alive_and_stopping(manager: socket.socket, tmp_path: Path) -> None:
    environ = {
        "POSTHOUSE_HOME": str(tmp_path / "home"),
        "NOTIFY_SOCKET": manager.getsockname(),
        "WATCHDOG_USEC": "300000",
    }
    with Child("posthouse.cli.main", "relay", "up", "--listen", "127.0.0.1:0", "--json", env=environ) as relay:
        assert {received(manager), received(manager)} == {"READY=1", "WATCHDOG=1"}
        assert received(manager) == "WATCHDOG=1"
        relay.signal(signal.SIGTERM)
        while (state := received(manager)) == "WATCHDOG=1":
            continue
        assert state == "STOPPING=1"
        assert relay.wait() == 0
