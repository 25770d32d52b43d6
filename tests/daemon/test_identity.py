"""Whose a daemon is: the machine it was made on, the key it keeps, and what happens when there are two of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from posthouse.daemon import mesh_node as daemon_module
from posthouse.daemon.directory import MeshDirectory
from posthouse.daemon.identity import (
    HostFingerprint,
    accept_host,
    accept_this_host,
    is_ephemeral_by_default,
    read_host,
    remint,
)
from posthouse.daemon.settings import ClonePolicy
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError
from tests.client.house import House
from tests.daemon.hosts import Host, host_at, make_host, running

READER = NodeKey(b"r" * 32).node
HERE = HostFingerprint("0123456789abcdef", "aa:bb:cc:dd:ee:ff")
ELSEWHERE = HostFingerprint("fedcba9876543210", "11:22:33:44:55:66")


def machine(root: Path, host_id: str | None = None, **cards: tuple[str, bool]) -> Path:
    """Lay out the files of a machine: its id, and cards with an address and whether there is hardware behind."""
    if host_id is not None:
        (root / "etc").mkdir(parents=True, exist_ok=True)
        (root / "etc/machine-id").write_text(host_id + "\n")
    for name, (mac, is_physical) in cards.items():
        card = root / "sys/class/net" / name
        card.mkdir(parents=True)
        (card / "address").write_text(mac + "\n")
        if is_physical:
            (card / "device").mkdir()
    return root


def test_wired_cards_come_before_wireless_ones_and_virtual_ones_never(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "abc",
        docker0=("02:00:00:00:00:01", False),
        br0=("02:00:00:00:00:02", False),
        wlan0=("02:00:00:00:00:03", True),
        enp3s0=("02:00:00:00:00:04", True),
        eth0=("02:00:00:00:00:05", False),
        tun0=("02:00:00:00:00:06", False),
    )
    assert read_host(root) == HostFingerprint("abc", "02:00:00:00:00:04")


def test_without_a_wire_the_wireless_card_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "abc", veth1=("02:00:00:00:00:01", False), wlp2s0=("02:00:00:00:00:03", True))
    assert read_host(root).mac == "02:00:00:00:00:03"


def test_the_id_of_dbus_stands_in_for_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dbus").mkdir(parents=True)
    (tmp_path / "var/lib/dbus/machine-id").write_text("from-dbus\n")
    assert read_host(tmp_path) == HostFingerprint("from-dbus", "")


def test_the_fingerprint_is_the_digest_over_version_id_and_card() -> None:
    assert HERE.digest == hashlib.sha256(b"v2\x000123456789abcdef\x00aa:bb:cc:dd:ee:ff").hexdigest()


async def started_at(host: Host, where: HostFingerprint, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start and end a daemon on a machine; return its node."""
    monkeypatch.setattr(daemon_module, "read_host", lambda: where)
    async with running(host):
        return host.node


async def test_an_identity_copied_to_another_machine_is_refused(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, house.url)
    node = await started_at(host, HERE, monkeypatch)
    assert await started_at(host, HERE, monkeypatch) == node
    with pytest.raises(PosthouseError) as refused:
        await started_at(host, ELSEWHERE, monkeypatch)
    assert refused.value.code == "host_changed"
    assert refused.value.spec.exit is Exit.IDENTITY
    assert "accept-host" in refused.value.hint
    assert "remint" in refused.value.hint
    assert await started_at(host, HERE, monkeypatch) == node


async def test_another_card_is_the_same_machine(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, house.url)
    await started_at(host, HERE, monkeypatch)
    moved = HostFingerprint(HERE.host_id, "99:99:99:99:99:99")
    await started_at(host, moved, monkeypatch)
    written = json.loads(host.mesh.directory.host_fingerprint.read_text())
    assert written["fingerprint"] == moved.digest


@pytest.mark.parametrize("policy", [ClonePolicy.WARN, ClonePolicy.ALLOW])
async def test_other_policies_let_a_copy_run(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: ClonePolicy
) -> None:
    host = make_host(tmp_path, house.url, clone_policy=policy)
    await started_at(host, HERE, monkeypatch)
    with structlog.testing.capture_logs() as logged:
        await started_at(host, ELSEWHERE, monkeypatch)
    [entry] = [each for each in logged if each["event"] == "host_changed"]
    assert (entry["log_level"] == "warning") == (policy is ClonePolicy.WARN)


async def test_accepting_the_host_lets_a_moved_identity_start(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, house.url)
    node = await started_at(host, HERE, monkeypatch)
    accept_host(host.mesh.directory.host_fingerprint, ELSEWHERE)
    assert await started_at(host, ELSEWHERE, monkeypatch) == node


async def test_a_reminted_identity_is_a_new_node_of_this_machine(house: House, tmp_path: Path) -> None:
    host = make_host(tmp_path, house.url)
    async with running(host):
        before = host.node
    assert remint(host.mesh.directory, FakeClock())[0] == before
    async with running(host):
        assert host.node != before
    assert [path.name for path in host.mesh.directory.root.glob("keypair.*.json")]


async def test_remint_refuses_while_rows_wait_unless_they_are_given_up(tmp_path: Path) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9")
    async with running(host):
        node = host.node
        await host.send(READER, "hello", client_message_id="c")
        with pytest.raises(PosthouseError) as refused:
            remint(host.mesh.directory, FakeClock())
        assert refused.value.code == "daemon_running"
    with pytest.raises(PosthouseError) as refused:
        remint(host.mesh.directory, host.settings.clock)
    assert refused.value.code == "remint_pending"
    before, after = remint(host.mesh.directory, host.settings.clock, abort_pending=True)
    assert before == node != after
    async with running(host):
        row = await host.row("c")
        assert (row["status"], row["aborted_by"]) == ("aborted", "remint")
        assert (await host.get("/v1/health"))["queue_depth"] == 0


def test_accept_this_host_writes_the_fingerprint(tmp_path: Path) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9")
    directory = MeshDirectory(host.settings.directory / "main")
    directory.prepare()
    accept_this_host(directory)
    assert json.loads(directory.host_fingerprint.read_text())["fingerprint"] == read_host().digest


async def test_the_older_of_two_daemons_with_one_key_ends_with_an_identity_error(house: House, tmp_path: Path) -> None:
    async with host_at(house, "first") as first:
        await first.down()
        shutil.copytree(first.settings.directory, tmp_path / "copy")
        await first.up()
        await first.connected()
        second = make_host(tmp_path, house.url, "copy")
        async with running(second):
            async with asyncio.timeout(20):
                with pytest.raises(PosthouseError) as ended:
                    await first.daemon.wait()
            assert ended.value.code == "mailbox_replaced"
            assert ended.value.spec.exit is Exit.IDENTITY
            await second.connected()
            assert second.node == first.node
            assert not second.daemon._ended.is_set()


async def test_an_ephemeral_daemon_has_another_key_each_time_and_keeps_none(house: House, tmp_path: Path) -> None:
    host = make_host(tmp_path, house.url, is_ephemeral=True)
    nodes = []
    for _ in range(2):
        async with running(host):
            nodes.append(host.node)
            assert not host.mesh.directory.key.exists()
    assert nodes[0] != nodes[1]


async def test_an_ephemeral_daemon_aborts_rows_that_another_key_signed(tmp_path: Path) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9", is_ephemeral=True)
    async with running(host):
        await host.send(READER, "hello", client_message_id="c")
    async with running(host):
        assert (await host.row("c"))["status"] == "aborted"


async def test_an_ephemeral_daemon_ends_after_its_time(tmp_path: Path) -> None:
    host = make_host(tmp_path, "http://127.0.0.1:9", is_ephemeral=True, ttl_s=0.05)
    async with running(host):
        async with asyncio.timeout(20):
            await host.daemon.wait()


@pytest.mark.parametrize("name", ["CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL"])
def test_machines_of_ci_are_ephemeral(name: str) -> None:
    assert is_ephemeral_by_default({name: "true"})
    assert not is_ephemeral_by_default({name: "false"})
    assert not is_ephemeral_by_default({})


async def test_another_key_of_the_relay_ends_the_daemon(house: House, tmp_path: Path) -> None:
    async with host_at(house, "a") as host:
        pass
    await house.down()
    shutil.rmtree(house.folder / "relay")
    await house.up()
    again = Host(replace(host.settings))
    async with running(again):
        async with asyncio.timeout(20):
            with pytest.raises(PosthouseError) as ended:
                await again.daemon.wait()
    assert ended.value.code == "relay_key_changed"
    assert ended.value.spec.exit is Exit.IDENTITY
