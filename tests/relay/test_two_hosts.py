"""Two homes with real processes: create a mesh, invite, join from the other host, publish and read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.keys import keyfile
from posthouse.model.codes.spec import Exit
from tests.faults.relay_process import RelayProcess
from tests.relay.two_hosts import Host, TwoHosts

pytestmark = pytest.mark.xdist_group("two-hosts")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """A relay on the first host with the mesh team, and a second host without any configuration."""
    folder = tmp_path_factory.mktemp("hosts")
    first = Host(folder / "first")
    first.make_key()
    with RelayProcess(folder, home=first.home) as relay:
        first.environ["POSTHOUSE_CLIENT_RELAY"] = relay.url
        assert first.run("mesh", "create", "team", "--name", "alice").exit == 0
        second = Host(folder / "second")
        yield TwoHosts(first, second, relay)
        second.run("down")  # joining has started a daemon


@pytest.fixture
def guest(hosts: TwoHosts, tmp_path: Path) -> Iterator[Host]:
    """A host that the relay does not know."""
    host = Host(tmp_path / "guest")
    yield host
    host.run("down")


def test_second_host_joins_with_one_string_then_publishes_and_reads(hosts: TwoHosts) -> None:
    joined = hosts.second.run("join", hosts.invite("team"), "--name", "bob").value
    assert (joined["mesh"], joined["name"], joined["role"]) == ("team", "bob", "member")
    sent = hosts.second.run("event", "publish", "hello from the other side", "--mesh", "team").value
    read = hosts.first.run("event", "query", "--mesh", "team").value["events"]
    assert [(event["id"], event["content"]) for event in read] == [(sent["id"], "hello from the other side")]


def test_sealed_event_is_opened_on_the_host_it_is_for(hosts: TwoHosts, guest: Host) -> None:
    guest.run("join", hosts.invite("team"), "--name", "carol")
    sent = hosts.first.run("event", "publish", "only for carol", "--mesh", "team", "--seal-for", "carol").value
    stored = guest.run("event", "get", sent["id"], "--mesh", "team").value
    assert stored["plaintext"] == "only for carol"
    assert "only for carol" not in stored["content"]


def test_tail_shows_what_the_other_host_publishes(hosts: TwoHosts, guest: Host) -> None:
    guest.run("join", hosts.invite("team"), "--name", "tailor")
    hosts.first.run("event", "publish", "a stitch in time", "--mesh", "team", "--tag", "t=tailor")
    told = guest.run("event", "tail", "--mesh", "team", "--tag", "t=tailor", "--count", "1").value
    assert told["content"] == "a stitch in time"


def test_invite_works_once(hosts: TwoHosts, guest: Host, tmp_path: Path) -> None:
    invite = hosts.invite("team")
    assert guest.run("join", invite, "--name", "once").exit == 0
    second = Host(tmp_path / "late").run("join", invite, "--name", "twice")
    assert (second.code, second.exit) == ("invite_invalid", Exit.REFUSED)


def test_join_that_lost_its_answer_can_be_repeated_by_the_same_node(hosts: TwoHosts, guest: Host) -> None:
    invite = hosts.invite("team")
    first = guest.run("join", invite, "--name", "again").value
    assert guest.run("join", invite, "--name", "again").value == first


def test_invite_expires(tmp_path: Path) -> None:
    clock = tmp_path / "clock.json"
    host, guest = Host(tmp_path / "host"), Host(tmp_path / "guest")
    host.make_key()
    relay = RelayProcess(tmp_path, home=host.home)
    relay.environ["POSTHOUSE_TEST_CLOCK"] = str(clock)
    with relay:
        host.environ["POSTHOUSE_CLIENT_RELAY"] = relay.url
        host.run("mesh", "create", "team")
        invite = host.run("mesh", "invite", "team", "--expires-s", "60").value["invite"]
        other = host.run("mesh", "invite", "team", "--expires-s", "3600").value["invite"]
        clock.write_text(json.dumps({"wall_offset_ns": 61_000_000_000, "boot_offset_ns": 61_000_000_000}))
        assert guest.run("join", invite, "--name", "late").code == "invite_invalid"
        assert guest.run("join", other, "--name", "in-time").exit == 0
        guest.run("down")


def test_invite_is_bound_to_the_key_of_its_relay(hosts: TwoHosts, guest: Host, tmp_path: Path) -> None:
    invite = hosts.invite("team")
    with RelayProcess(tmp_path / "impostor") as impostor:
        elsewhere = invite.replace(f":{hosts.relay.port}/", f":{impostor.port}/")
        refused = guest.run("join", elsewhere, "--name", "mallory")
        assert (refused.code, refused.exit) == ("relay_key_changed", Exit.IDENTITY)
    assert guest.run("join", invite, "--name", "careful").exit == 0, "its code was not spent on the impostor"


def test_changed_relay_key_is_refused_until_it_is_trusted(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    host.make_key()
    relay = RelayProcess(tmp_path)
    with relay:
        host.environ["POSTHOUSE_CLIENT_RELAY"] = relay.url
        assert host.run("event", "publish", "before").exit == 0
    before = relay.node
    (relay.data_dir / "key.json").unlink()
    keyfile.create(relay.data_dir / "key.json")
    with relay:
        assert relay.node != before
        for command in (("event", "publish", "after"), ("event", "query"), ("mesh", "create", "other")):
            refused = host.run(*command)
            assert (refused.code, refused.exit) == ("relay_key_changed", Exit.IDENTITY), command
        trusted = host.run("trust", relay.url).value
        assert (trusted["before"], trusted["node"]) == (before, relay.node)
        assert host.run("event", "publish", "after").exit == 0


def test_trust_with_a_given_key_does_not_ask_the_relay(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    node = Host(tmp_path / "other").make_key()
    assert host.run("trust", "127.0.0.1:1", "--node", node).value["node"] == node


def test_changed_member_key_is_refused_until_it_is_trusted(hosts: TwoHosts, guest: Host, tmp_path: Path) -> None:
    guest.run("join", hosts.invite("team"), "--name", "dave")
    assert hosts.first.run("event", "publish", "hi", "--mesh", "team", "--seal-for", "dave").exit == 0
    hosts.first.run("mesh", "members", "team", "--remove", "dave")
    mallory = Host(tmp_path / "mallory")
    mallory.run("join", hosts.invite("team"), "--name", "dave")
    mallory.run("down")
    refused = hosts.first.run("event", "publish", "secret", "--mesh", "team", "--seal-for", "dave")
    assert (refused.code, refused.exit) == ("member_key_changed", Exit.IDENTITY)
    assert "posthouse trust dave --mesh team --node ed25519:" in refused.problem["hint"]
    other = hosts.first.run("event", "publish", "hi", "--mesh", "team", "--seal-for", "alice")
    assert other.exit == 0, "one changed key stops only its own name"
    listed = hosts.first.run("mesh", "members", "team").value["members"]
    assert [each["name"] for each in listed if each["pinned"] is not None] == ["dave"]
    assert hosts.first.run("trust", "dave", "--mesh", "team").exit == 0
    assert hosts.first.run("event", "publish", "secret", "--mesh", "team", "--seal-for", "dave").exit == 0


def test_relay_that_is_not_there_is_exit_3(tmp_path: Path) -> None:
    host = Host(tmp_path / "host", POSTHOUSE_CLIENT_RELAY="127.0.0.1:1")
    host.make_key()
    for command in (("event", "publish", "x"), ("event", "query"), ("mesh", "create", "m"), ("relay", "info")):
        refused = host.run(*command)
        assert (refused.code, refused.exit) == ("relay_unreachable", Exit.UNREACHABLE), command
