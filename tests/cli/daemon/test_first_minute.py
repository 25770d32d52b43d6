"""The first minute on two hosts, as people type it: `up`, `invite`, `join`, `send`; and what follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.cli.join import host_name
from posthouse.cli.up import certificate_fingerprint, make_certificate
from posthouse.client import parse_invite
from posthouse.keys import keyfile
from posthouse.model.codes.spec import Exit

BOUND_S = 120


class Machine:
    """A home of its own, and commands typed there in processes of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(("POSTHOUSE_", "CI"))}
        self._env["POSTHOUSE_HOME"] = str(home)

    def run(self, *words: str, options: tuple[str, ...] = ("--json",)) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "posthouse.cli.main", *words, *options)
        return subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=BOUND_S, check=False)

    def __call__(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def refusal(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode != 0
        return json.loads(done.stderr.splitlines()[-1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "server")
    yield made
    made.run("daemon", "down")
    made.run("relay", "down")


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "laptop")
    yield made
    made.run("daemon", "down")


def test_two_hosts_talk_after_up_invite_and_join(server: Machine, laptop: Machine) -> None:
    listen = "0.0.0.0:0"
    started = server("up", "--listen", listen)
    assert (started["admitted"], started["arrived"], started["name"]) == (True, True, host_name())
    assert not (server.home / "key.json").exists(), "one identity: the key of the mesh"
    again = server("up", "--listen", listen)
    assert (again["daemon"]["pid"], again["relay"]["pid"]) == (started["daemon"]["pid"], started["relay"]["pid"])

    line = server("invite", "--address", f"127.0.0.1:{started['relay']['listen'].rpartition(':')[2]}")["command"]
    program, verb, quoted = line.split(" ", 2)
    assert (program, verb) == ("posthouse", "join")
    invite = quoted.strip("'")
    wrong = invite.replace("tls=sha256:", "tls=sha256:0")[: len(invite)]
    assert laptop.refusal("join", wrong)["code"] == "relay_certificate_refused"
    joined = laptop("join", invite)
    assert (joined["admitted"], joined["arrived"]) == (True, True)
    assert joined["name"] == f"{host_name()}-2", "the server has the host's name already"
    assert laptop("use")["mesh"] == "main"

    laptop("send", started["name"], "hello from the laptop")
    (item,) = server("inbox", "wait", "--timeout", "60")["items"]
    assert (item["body"], item["sender_name"]) == ("hello from the laptop", joined["name"])
    (state,) = laptop("daemon", "ps")["meshes"]
    assert (state["mesh"], state["state"], state["admitted"], state["is_default"]) == ("main", "connected", True, True)
    assert laptop.refusal("message", "receive", "--count", "1")["code"] == "daemon_has_it"
    assert laptop.run("doctor").returncode == 0

    server("mesh", "members", "main", "--remove", joined["name"])
    for _ in range(20):
        if laptop("daemon", "status")["refusal"] == "not_member":
            break
    laptop("send", joined["name"], "from this host to itself")
    first = ("tail", "--after", laptop("inbox")["items"][-1]["id"], "--count", "1")
    for words in (("peers",), ("send", started["name"], "waits too"), first):
        told = laptop.run(*words, options=()).stderr
        assert "is not a member of the mesh main" in told and "posthouse join INVITE" in told
    row = laptop("send", started["name"], "waits")
    assert laptop("daemon", "outbox", "inspect", row["id"])["row"]["status"] == "pending"
    assert laptop.refusal("daemon", "leave")["code"] == "remint_pending"
    left = laptop("daemon", "leave", "--abort-pending")
    assert (Path(left["aside"]) / "keypair.json").exists()
    assert laptop("use")["meshes"] == []


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("laptop.example.org", "laptop"),
        ("deadbeef01", "host-deadbeef01"),
        ("ed25519-box", "host-ed25519-box"),
        ("Zoë's Mac", "Zo--s-Mac"),
        ("", "host"),
        ("cafe", "cafe"),
    ],
)
def test_host_name_is_a_member_name_and_never_looks_like_a_key(given: str, name: str) -> None:
    assert host_name(given) == name


def test_invite_carries_the_fingerprint_of_the_certificate(tmp_path: Path) -> None:
    make_certificate(tmp_path / "c.pem", tmp_path / "k.pem")
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600
    fingerprint = certificate_fingerprint(tmp_path / "c.pem")
    node = keyfile.create(tmp_path / "n.json").node
    text = f"posthouse://127.0.0.1:7420/team?relay={node}&code=x&tls={fingerprint}"
    invite = parse_invite(text)
    assert (str(invite), invite.url.origin, invite.tls) == (text, "https://127.0.0.1:7420", fingerprint)


def test_token_is_replaced_for_a_daemon_that_runs(laptop: Machine) -> None:
    laptop("daemon", "up", "--relay", "127.0.0.1:9")
    path = laptop.home / "daemon" / "local_token"
    before = path.read_text()
    laptop("daemon", "rotate-token")
    assert path.read_text() != before
    assert path.stat().st_mode & 0o777 == 0o600


def test_mesh_that_was_never_joined_cannot_be_chosen(laptop: Machine) -> None:
    done = laptop.run("use", "nowhere")
    assert done.returncode == Exit.USAGE and "posthouse join" in done.stderr


def test_joining_again_passes_over_no_unread_mail_and_acts_for_the_host(server: Machine, laptop: Machine) -> None:
    started = server("up", "--listen", "127.0.0.1:0")
    server("send", started["name"], "unread note to self")
    again = server("up", "--listen", "127.0.0.1:0")
    assert (again["admitted"], again["arrived"]) == (True, True)
    (item,) = server("inbox", "wait", "--timeout", "0")["items"]
    assert item["body"] == "unread note to self"


def test_home_with_two_keys_moves_its_rights_to_the_key_of_the_mesh(server: Machine, laptop: Machine) -> None:
    """A home from before: key.json administers the mesh, and the daemon has a key of its own without rights."""
    home_node = server("keys", "new")["node"]
    started = server("up", "--listen", "127.0.0.1:0")
    members = {each["node"]: each for each in server("mesh", "members", "main")["members"]}
    daemon_node = server("daemon", "status")["node"]
    assert members[home_node]["role"] == "admin" and daemon_node != home_node
    assert members[daemon_node]["role"] == "member"
    assert "posthouse daemon adopt --mesh main" in server.run("doctor").stdout

    moved = server("daemon", "adopt")
    assert (moved["moved"], moved["role"], moved["node"]) == (True, "admin", daemon_node)
    members = {each["node"]: each for each in server("mesh", "members", "main")["members"]}
    assert (members[daemon_node]["role"], members[daemon_node]["name"]) == ("admin", started["name"])
    assert home_node not in members
    assert "daemon adopt" not in server.run("doctor").stdout
    assert server("invite")["mesh"] == "main", "commands act with the rights that were moved"
    assert server("daemon", "adopt")["moved"] is False, "safe to repeat"
