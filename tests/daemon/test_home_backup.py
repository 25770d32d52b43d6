"""A backup of a daemon as one encrypted file, its restore, and the comparison with the relay that follows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from posthouse.daemon import home_backup
from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.home_backup import back_up, restore
from posthouse.files import write_atomic
from posthouse.journal.restore import restore_store
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError
from tests.client.house import House
from tests.daemon.hosts import Host, eventually, make_host, running

WORD = b"correct horse"


async def test_restored_daemon_has_key_and_mail_and_compares_with_the_relay_before_it_accepts(
    house: House, bob: Host, tmp_path: Path
) -> None:
    host = make_host(tmp_path, house.url, "lost")
    directory, home, file = DaemonDirectory(tmp_path / "lost"), tmp_path / "home", tmp_path / "one.backup"
    home.mkdir(mode=0o700)
    async with running(host):
        await host.connected()
        node = host.node
        await bob.send(node, "before the backup")
        await host.until_bodies(1)
        assert back_up(directory, home, file, WORD) == ["main"]
        await bob.send(node, "after the backup")
        await host.until_bodies(2)
    shutil.rmtree(tmp_path / "lost")
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"before the backup" not in file.read_bytes() and node.encode() not in file.read_bytes()

    assert restore(directory, home, file, WORD, system_clock()) == ["main"]
    await house.down()
    async with running(host):
        assert (host.node, await host.bodies()) == (node, ["before the backup"])
        refused = await host.send(bob.node, "too early")
        assert (refused.status, refused["error"]) == (503, "daemon_reconciling")
        await house.up()
        await host.connected()
        accepted = await eventually(lambda: host.send(bob.node, "now"), lambda said: said.status == 202)
        assert sorted(await host.until_bodies(2)) == ["after the backup", "before the backup"]
        await host.until_status(accepted["client_message_id"], "done")
    assert not (tmp_path / "lost" / "main" / "unreconciled").exists()


async def test_restore_refuses_a_wrong_passphrase_a_damaged_file_and_a_home_in_use(tmp_path: Path) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9", "a")
    directory, file = DaemonDirectory(tmp_path / "a"), tmp_path / "b"
    async with running(host):
        back_up(directory, tmp_path, file, WORD)
    good = file.read_bytes()

    def refusal(into: str, data: bytes = good, word: bytes = WORD) -> str:
        file.write_bytes(data)
        with pytest.raises(PosthouseError) as caught:
            restore(DaemonDirectory(tmp_path / into), tmp_path, file, word, system_clock())
        return caught.value.code

    assert refusal("a") == "identity_is_persistent"
    assert refusal("new", word=b"wrong") == "backup_unreadable"
    assert refusal("new", good[:-1]) == "backup_unreadable"
    assert refusal("new", good[: len(good) // 2]) == "backup_unreadable"
    assert refusal("new", b"nothing of ours") == "backup_unreadable"
    flipped = bytearray(good)
    flipped[-9] ^= 1
    assert refusal("new", bytes(flipped)) == "backup_unreadable"
    assert not DaemonDirectory(tmp_path / "new").meshes()


async def test_what_was_sent_after_the_backup_is_in_the_restored_outbox_and_its_ids_stay_used(
    house: House, bob: Host, tmp_path: Path
) -> None:
    host = make_host(tmp_path, house.url, "lost")
    directory, home, file = DaemonDirectory(tmp_path / "lost"), tmp_path / "home", tmp_path / "one.backup"
    home.mkdir(mode=0o700)
    async with running(host):
        await host.connected()
        claude = await host.add_agent("claude")
        await host.send(bob.node, "first", client_message_id="c1")
        await host.until_status("c1", "done")
        back_up(directory, home, file, WORD)
        second = await claude.send(bob.node, "second", client_message_id="c2", meta={"k": 1}, priority="now")
        await claude.until_status("c2", "done")
        before = await claude.row("c2")
    shutil.rmtree(tmp_path / "lost")
    restore(directory, home, file, WORD, system_clock())
    async with running(host):
        await host.connected()
        claude = host.acting_as("claude")
        after = await eventually(lambda: claude.row("c2"), lambda row: row.get("status") == "done")
        kept = ("message_id", "destination", "from_agent", "history_id", "broker_message_id")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        again = await eventually(
            lambda: claude.send(bob.node, "second", client_message_id="c2", meta={"k": 1}, priority="now"),
            lambda said: said.status != 503,
        )
        assert (again.status, again["duplicate"], again["message_id"]) == (200, True, second["message_id"])
        other = await claude.send(bob.node, "another", client_message_id="c2")
        assert (other.status, other["error"]) == (409, "idempotency_key_reused")
        assert len((await host.get("/v1/outbox"))["items"]) == 2
        assert (await host.mesh.outbox.depth())[:2] == (0, 0)
    assert await bob.bodies() == ["first", "second"]


async def test_a_backup_that_cannot_be_completed_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9", "a")

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    async with running(host):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
            patched.setattr(home_backup, "_seal", fail)
            back_up(DaemonDirectory(tmp_path / "a"), tmp_path, tmp_path / "b", WORD)
        assert not (tmp_path / "b").exists()
        assert back_up(DaemonDirectory(tmp_path / "a"), tmp_path, tmp_path / "b", WORD) == ["main"]


class _Killed(BaseException):
    """The process ends at once."""


async def test_a_restore_that_is_killed_anywhere_runs_again_and_no_daemon_starts_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9", "a")
    file, home = tmp_path / "b", tmp_path / "home"
    async with running(host):
        node = host.node
        await host.add_agent("claude")
        back_up(DaemonDirectory(tmp_path / "a"), home, file, WORD)
    shutil.rmtree(tmp_path / "a")
    directory = DaemonDirectory(tmp_path / "a")
    steps = 0

    def stop_after(count: int) -> None:
        """Let a restore be killed before its step number `count`: a store, or a file of an identity."""
        left = count

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def step(*given: object, **named: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise _Killed
                return real(*given, **named)

            return step

        monkeypatch.setattr(home_backup, "restore_store", counted(restore_store))
        monkeypatch.setattr(home_backup, "write_atomic", counted(write_atomic))

    while True:
        stop_after(steps)
        try:
            restore(directory, home, file, WORD, system_clock())
        except _Killed:
            if directory.restoring.exists():
                with pytest.raises(PosthouseError) as caught:
                    await host.up()
                assert caught.value.code == "restore_unfinished"
        else:
            break
        steps += 1
    assert steps > 6
    assert not list((tmp_path / "a").glob(".restore-*"))
    async with running(host):
        assert host.node == node
        assert "claude" in host.daemon.agents.agents
