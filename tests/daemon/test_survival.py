"""A daemon on a full disk, with a log that cannot be written, and with a writer that has died."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.daemon import DaemonClient
from posthouse.daemon.roster import Roster
from posthouse.journal.verify import verify_store
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError
from tests.client.house import House
from tests.client.waiting import PATIENCE_S
from tests.daemon.hosts import Host, eventually, host_at, make_host, running
from tests.faults.child import Child
from tests.journal.facts import note, opened

START_S = 60


def fill(disk: Path) -> Path:
    """Write to a disk until it has no room for another byte; return the file to delete."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as failure:
                assert failure.errno == errno.ENOSPC
    return ballast


async def health(host: Host) -> Any:
    return (await host.get("/v1/health")).body


async def test_daemon_on_a_full_disk_goes_on_by_itself_once_there_is_room(
    small_disk: Path, house: House, bob: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.daemon.housekeeping._MEASURE_EVERY_S", 0.05)
    monkeypatch.setattr("posthouse.daemon.uplink._PROBE_S", 0.05)
    host = make_host(small_disk, house.url, "a", pins=small_disk / "pins.json")
    async with running(host):
        await host.connected()
        ballast = fill(small_disk)
        refused = await host.send(bob.node, "x" * 30_000)
        assert refused["error"] in ("store_full", "insufficient_storage")
        sent = await bob.send(host.node, "y" * 40_000)  # the relay keeps it: this inbox cannot
        await bob.until_status(sent["client_message_id"], "done")
        await eventually(lambda: health(host), lambda state: state["writable"] is False)
        ballast.unlink()
        await host.until_bodies(1)
        await eventually(lambda: health(host), lambda state: state["writable"] is True)
        again = await eventually(lambda: host.send(bob.node, "after"), lambda said: said.status == 202)
        await host.until_status(again["client_message_id"], "done")
    assert verify_store(small_disk / "a" / "main" / "inbox.db") == []
    assert verify_store(small_disk / "a" / "main" / "outbox.db") == []


@pytest.mark.parametrize("name", ["new", "known"])
async def test_start_on_a_full_disk_says_store_full(small_disk: Path, house: House, name: str) -> None:
    host = make_host(small_disk, house.url, name, pins=small_disk / "pins.json")
    if name == "known":
        async with running(host):
            await host.connected()
    ballast = fill(small_disk)
    with pytest.raises(PosthouseError) as caught:
        async with running(host):
            pass
    assert caught.value.code == "store_full"
    ballast.unlink()
    async with running(host):
        await host.connected()


def test_command_on_a_full_disk_says_store_full(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    options = ("--dir", small_disk / "d", "--relay", "http://127.0.0.1:9", "--foreground", "--persistent")
    with Child("posthouse.cli.main", "daemon", "up", *options, env={"POSTHOUSE_HOME": str(tmp_path / "h")}) as child:
        assert child.wait(START_S) == Exit.UNREACHABLE
    assert "Free space on the disk" in child.errors


def test_daemon_with_a_dead_writer_ends_with_the_reason_and_starts_again(tmp_path: Path) -> None:
    folder, trigger = tmp_path / "d", tmp_path / "break"
    env = {"POSTHOUSE_HOME": str(tmp_path / "home"), "WRITER_BREAKS_AT": str(trigger)}
    words = ("daemon", "up", "--dir", folder, "--relay", "http://127.0.0.1:9", "--foreground", "--persistent", "--json")
    with Child("tests.daemon.children.writerless", *words, "--no-tcp", env=env) as daemon:
        daemon.wait_lines(1, START_S)
        trigger.touch()
        with DaemonClient(folder) as client, pytest.raises(PosthouseError):
            client.send(NodeKey.generate().node, "lost?")
        assert daemon.wait(START_S) == Exit.BROKEN
        assert "no memory for the batch" in daemon.errors
    assert "daemon_failed" in (folder / "daemon.log").read_text()
    assert "daemon_stopped" in (folder / "daemon.log").read_text()
    assert not (folder / "sock").exists()
    trigger.unlink()
    with Child("tests.daemon.children.writerless", *words, "--no-tcp", env=env) as daemon:
        daemon.wait_lines(1, START_S)


async def test_task_that_dies_ends_the_daemon_with_the_reason(house: House) -> None:
    async with host_at(house, "alice") as host:

        async def fail(*_given: object) -> list[Any]:
            raise ZeroDivisionError("a defect in a drain task")

        host.mesh.drain._submit = fail
        await host.send(NodeKey.generate().node, "hello")
        with pytest.raises(PosthouseError, match="a defect in a drain task"):
            async with asyncio.timeout(PATIENCE_S):
                await host.daemon.wait()


def test_roster_that_could_not_be_saved_is_saved_when_there_is_room(small_disk: Path) -> None:
    path = small_disk / "roster.json"
    roster = Roster(path)
    ballast = fill(small_disk)
    roster.set_topics(["builds"])
    assert (roster.topics, path.exists()) == (["builds"], False)
    ballast.unlink()
    roster.set_topics(["builds"])
    assert Roster(path).topics == ["builds"]


async def test_commit_without_a_change_does_not_end_the_state_of_a_full_store(small_disk: Path) -> None:
    with opened(small_disk / "s.db", FakeClock()) as store:
        ballast = fill(small_disk)
        with pytest.raises(PosthouseError):
            await store.writer.run(note("x", padding=20_000))
        await store.writer.run(lambda tx: None)
        assert store.writer.state == "full"
        ballast.unlink()
        await store.probe()
        assert store.writer.state == "open"
    assert verify_store(small_disk / "s.db") == []
