"""Keys from outside: two homes with real processes rotate, recover, replace and revoke keys with commands."""

from __future__ import annotations

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
    """A relay on the first host, whose key administers it, with the mesh team."""
    folder = tmp_path_factory.mktemp("hosts")
    first = Host(folder / "first")
    first.make_key()
    with RelayProcess(folder, home=first.home) as relay:
        first.environ["POSTHOUSE_CLIENT_RELAY"] = relay.url
        assert first.run("mesh", "create", "team", "--name", "alice").exit == 0
        yield TwoHosts(first, Host(folder / "second"), relay)


def guest(hosts: TwoHosts, home: Path, name: str) -> Host:
    """Return a host that has joined the mesh team under a name, with a home key and no daemon."""
    made = Host(home / name, POSTHOUSE_CLIENT_RELAY=hosts.relay.url)
    key = made.home / "key.json"
    joined = made.run("join", hosts.invite("team"), "--name", name, "--key-file", str(key))
    assert joined.exit == 0, joined.err
    return made


def test_keys_rotate_replaces_the_key_and_the_other_host_says_so(hosts: TwoHosts, tmp_path: Path) -> None:
    bob = guest(hosts, tmp_path, "bob")
    sealed = hosts.first.run("event", "publish", "for the old key", "--mesh", "team", "--seal-for", "bob").value
    rotated = bob.run("keys", "rotate").value
    assert rotated["node"] == keyfile.load(bob.home / "key.json").node != rotated["before"]
    said = hosts.first.run("event", "publish", "for the new key", "--mesh", "team", "--seal-for", "bob")
    assert said.exit == 0 and rotated["before"] in said.err and rotated["node"] in said.err
    for event_id, text in ((sealed["id"], "for the old key"), (said.value["id"], "for the new key")):
        assert bob.run("event", "get", event_id, "--mesh", "team").value["plaintext"] == text
    chain = hosts.first.run("keys", "chain", rotated["before"]).value
    assert (chain["current"], [each["reason"] for each in chain["changes"]]) == (rotated["node"], ["rotated"])


def test_rotation_that_was_interrupted_goes_on_with_the_same_new_key(hosts: TwoHosts, tmp_path: Path) -> None:
    host = guest(hosts, tmp_path, "interrupted")
    before = keyfile.load(host.home / "key.json").node
    reachable = host.environ.pop("POSTHOUSE_CLIENT_RELAY")
    failed = host.run("keys", "rotate", "--relay", "127.0.0.1:1")
    assert (failed.code, failed.exit) == ("relay_unreachable", Exit.UNREACHABLE)
    successor = keyfile.load(host.home / "key.next.json").node
    assert keyfile.load(host.home / "key.json").node == before, "it still works"
    host.environ["POSTHOUSE_CLIENT_RELAY"] = reachable
    assert host.run("keys", "rotate").value["node"] == successor


def test_lost_key_is_recovered_on_a_new_machine(hosts: TwoHosts, tmp_path: Path) -> None:
    carol, new = guest(hosts, tmp_path, "carol"), Host(tmp_path / "new", POSTHOUSE_CLIENT_RELAY=hosts.relay.url)
    lost = keyfile.load(carol.home / "key.json").node
    paper = tmp_path / "paper" / "recovery.json"
    recovery = carol.run("keys", "new", "--key-file", str(paper)).value["node"]
    assert carol.run("keys", "recovery", recovery, "--mesh", "team").exit == 0
    thief = Host(tmp_path / "thief", POSTHOUSE_CLIENT_RELAY=hosts.relay.url)
    thief.make_key()
    refused = thief.run("keys", "recover", lost, "--recovery-key", str(thief.home / "key.json"))
    assert refused.code in ("recovery_refused", "rotation_malformed")
    recovered = new.run("keys", "recover", lost, "--recovery-key", str(paper)).value
    names = {each["node"]: each["name"] for each in hosts.first.run("mesh", "members", "team").value["members"]}
    assert names[recovered["node"]] == "carol"
    assert carol.run("event", "query", "--mesh", "team").code == "key_rotated"


def test_stolen_laptop_is_revoked_and_replaced_by_an_admin(hosts: TwoHosts, tmp_path: Path) -> None:
    dave, new = guest(hosts, tmp_path, "dave"), Host(tmp_path / "new", POSTHOUSE_CLIENT_RELAY=hosts.relay.url)
    stolen = keyfile.load(dave.home / "key.json").node
    hosts.first.run("mesh", "members", "team")
    written = dave.run("event", "publish", "by the thief", "--mesh", "team").value
    assert dave.run("keys", "revoke", stolen).code == "right_missing"
    assert hosts.first.run("keys", "revoke", stolen, "--since", "1h").exit == 0
    refused = dave.run("event", "publish", "again", "--mesh", "team")
    assert (refused.code, refused.exit) == ("key_revoked", Exit.IDENTITY)
    shown = hosts.first.run("event", "get", written["id"], "--mesh", "team").value
    assert shown["suspect"] is True
    successor = new.make_key()
    assert hosts.first.run("keys", "replace", stolen, successor).exit == 0
    sealed = hosts.first.run("event", "publish", "x", "--mesh", "team", "--seal-for", "dave")
    assert sealed.code == "member_key_changed", "an admin did it, not dave"
    assert hosts.first.run("trust", "dave", "--mesh", "team", "--node", successor).exit == 0
    assert new.run("event", "publish", "I am back", "--mesh", "team").exit == 0
