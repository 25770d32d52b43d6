"""The first minute on two hosts, as people type it: `up`, `invite`, `join`, `send`; and what follows."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posthouse.cli.join import host_name
from posthouse.cli.up import certificate_fingerprint, make_certificate
from posthouse.client import parse_invite
from posthouse.client.daemon import DaemonClient
from posthouse.keys import keyfile
from posthouse.model.codes.spec import Exit
from tests.cli.daemon.machine import Machine

PATIENCE_S = 60
DEFAULT_ADDRESS = "127.0.0.1:7420"
FIRST_MESSAGE_S = 10  # from the first command to the first message, on a machine that has nothing else to do


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "server")
    yield made
    made.run("down")


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "laptop")
    yield made
    made.run("down")


def short_of_processor_s() -> float | None:
    """Return for how long programs of this machine have waited for a processor since it started, if Linux counts it."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return None
    return int(some.rpartition("total=")[2]) / 1_000_000


def test_two_agents_talk_within_ten_seconds_of_the_first_command(
    server: Machine, record_property: Callable[[str, object], None]
) -> None:
    begin_s, waited_s = time.monotonic(), short_of_processor_s()
    server("up")
    for name in ("ana", "bob"):
        server("agent", "add", name)
    server("send", "bob", "the first message", "--agent", "ana")
    (item,) = server("inbox", "wait", "--agent", "bob", "--timeout", str(PATIENCE_S))["items"]
    taken_s = time.monotonic() - begin_s
    record_property("first_message_s", round(taken_s, 2))
    assert (item["body"], item["from_agent"]) == ("the first message", "ana")
    if waited_s is not None:  # other programs of a busy machine do not count
        assert taken_s - (short_of_processor_s() or 0) + waited_s < FIRST_MESSAGE_S


def test_up_says_what_runs_where_and_what_to_do_next_and_repeating_it_changes_nothing(server: Machine) -> None:
    first = server.run("up", options=())
    relay, daemon, name = first.stdout.splitlines()
    assert relay.startswith("the relay listens on http://127.0.0.1:")
    assert daemon.endswith("the relay has admitted it, and a message to itself has arrived")
    assert name == f"in the mesh main this host is {host_name()}"
    for command in ("posthouse connect claude-code --write", "posthouse send", "posthouse invite", "posthouse down"):
        assert command in first.stderr
    assert max(map(len, first.stderr.splitlines())) <= 80, "a terminal is 80 columns wide"
    assert not (server.home / "key.json").exists(), "one identity: the key of the mesh"
    server("send", host_name(), "mail for a person")
    again = server("up")
    assert (str(again["relay"]["pid"]) in relay, str(again["daemon"]["pid"]) in daemon) == (True, True)
    assert [item["body"] for item in server("inbox", "wait", "--timeout", "60")["items"]] == ["mail for a person"]
    assert server.run("up", "--listen", "0.0.0.0:1").returncode == Exit.USAGE


def test_up_starts_the_relay_on_the_address_that_the_last_up_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "host", is_relay_configured=False)
    try:
        first = machine("up", "--listen", "127.0.0.1:0")["relay"]
        machine("down")
        again = machine("up")["relay"]
        assert (again["listen"], again["pid"] == first["pid"]) == (first["listen"], False)
        machine("send", host_name(), "still here")
        assert [item["body"] for item in machine("inbox", "wait", "--timeout", "60")["items"]] == ["still here"]
    finally:
        machine.run("down")


@pytest.fixture
def default_port_is_taken() -> Iterator[None]:
    """Another program listens where a relay does by default."""
    host, _, port = DEFAULT_ADDRESS.rpartition(":")
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # some program has it already
            other.bind((host, int(port)))
            other.listen()
        yield


@pytest.mark.usefixtures("default_port_is_taken")
def test_up_takes_a_free_port_if_another_user_has_the_default_one_and_keeps_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "host", is_relay_configured=False)
    try:
        first = machine.run("up", options=())
        assert (first.returncode, "from now on this relay listens on 127.0.0.1:" in first.stderr) == (0, True)
        machine("send", host_name(), "through the relay of this user")
        (item,) = machine("inbox", "wait", "--timeout", "60")["items"]
        assert item["body"] == "through the relay of this user"
        assert machine("event", "publish", "a fact")["seq"] > 0
        machine("down")
        again = machine.run("up", options=())
        assert first.stdout.partition(" (pid")[0] == again.stdout.partition(" (pid")[0]
        assert "another program" not in again.stderr
    finally:
        machine.run("down")


@pytest.mark.usefixtures("default_port_is_taken")
def test_up_on_a_named_address_that_is_taken_says_so_and_send_asks_no_relay_of_another_user(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "host", is_relay_configured=False)
    refused = machine.refusal("up", "--listen", DEFAULT_ADDRESS)
    assert (refused["code"], "--listen" in refused["hint"]) == ("listen_failed", True)
    for command in ("send", "request"):
        refused = machine.refusal(command, "bob", "is it you?")
        assert (refused["code"], "posthouse up" in refused["hint"]) == ("daemon_unreachable", True)


def test_commands_before_up_name_it(laptop: Machine) -> None:
    commands = (
        *("agent add ann", "agent ls", "console --no-browser", "doctor", "event query", "history bob", "inbox"),
        *("inbox --direct --count 1", "inbox wait --timeout 1", "invite", "keys show", "lock ls", "lock run x -- true"),
        *("mesh members main", "peers", "request bob hi", "reserve a.py", "send --direct bob hi", "send bob hi"),
        *("send ann@bob hi", "status", "tail --count 1", "topic list", "trace 7"),
    )
    said = {each: laptop.run(*each.split(), options=()) for each in commands}
    assert [each for each, done in said.items() if "posthouse up" not in done.stdout + done.stderr] == []


def test_the_three_commands_of_the_readme_reach_an_agent_that_has_not_started_yet(
    server: Machine, tmp_path: Path
) -> None:
    server("up")
    for _ in range(2):  # repeating it adds no second agent
        server("connect", "claude-code", "--file", str(tmp_path / "mcp.json"), "--write")
    server("send", "claude", "please review the last commit")
    (agent,) = server("status")["daemon"]["agents"]
    assert (agent["name"], agent["program"], agent["unread"]) == ("claude", "claude-code", 1)
    with DaemonClient(server.home / "daemon") as daemon:
        session = daemon.register("claude", pid=os.getpid(), program="claude-code")
    assert session.name == "claude", "its first session has the name, and the mail"


def test_home_that_other_users_can_open_starts_nothing_and_spends_no_invite(server: Machine, laptop: Machine) -> None:
    for machine in (server, laptop):
        machine.home.mkdir()
        machine.home.chmod(0o755)
        (machine.home / "config.toml").touch()
    assert server.refusal("up")["code"] == "file_not_private"
    assert server.run("status").returncode == Exit.UNREACHABLE
    assert [path.name for path in server.home.iterdir()] == ["config.toml"], "nothing was started or written"
    server.home.chmod(0o700)
    server("up")
    invite = server("invite")["invite"]
    assert laptop.refusal("join", invite)["code"] == "file_not_private"
    laptop.home.chmod(0o700)
    assert laptop("join", invite)["admitted"]


def test_status_shows_what_runs_and_down_ends_it_and_can_be_repeated(server: Machine) -> None:
    assert server("down") == {"daemon": {"stopped": False, "pid": None}, "relay": {"stopped": False, "pid": None}}
    up = server("up")
    server("agent", "add", "ana", "--program", "claude-code")
    server("send", "ana", "hello")
    server("agent", "pause", "ana", "--for", "1h")
    seen = server("status")
    assert (seen["relay"]["pid"], seen["relay"]["health"]) == (up["relay"]["pid"], "ok")
    assert (seen["daemon"]["pid"], seen["daemon"]["writable"]) == (up["daemon"]["pid"], True)
    (mesh,) = seen["daemon"]["meshes"]
    assert (mesh["mesh"], mesh["state"], mesh["member"], mesh["admitted"]) == ("main", "connected", host_name(), True)
    (agent,) = seen["daemon"]["agents"]
    assert (agent["name"], agent["unread"], agent["paused"] is None) == ("ana", 1, False)
    listed = server.run("peers", options=("--output", "csv")).stdout.splitlines()
    node = mesh["node"]
    assert listed[1:] == [f"{host_name()},online,,admin,{node}", f"ana@{host_name()},offline,idle,agent,{node}"]
    shown = server.run("status", options=()).stdout
    assert "agent ana" in shown and "1 unread" in shown and "paused until" in shown
    ended = server("down")
    assert (ended["daemon"]["pid"], ended["relay"]["pid"]) == (up["daemon"]["pid"], up["relay"]["pid"])
    assert server.run("status").returncode == Exit.UNREACHABLE


def kill_and_wait(pid: int) -> None:
    """Kill a process and wait until it has ended: until then it holds its locks."""
    ended = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([ended], [], [], 60)[0]
    finally:
        os.close(ended)


def test_host_name_that_no_mesh_takes_is_refused_with_the_rule(server: Machine) -> None:
    refused = server.refusal("up", "--name", "my host")
    assert (refused["code"], "letters, digits" in refused["hint"]) == ("member_name_invalid", True)
    assert not server.home.exists(), "what is invalid is refused before anything starts"
    assert server("up", "--name", "my-host")["name"] == "my-host"


@pytest.mark.parametrize("listen", ["laptop", "7420", "127.0.0.1:99999"])
def test_address_that_up_cannot_listen_on_is_refused_before_anything_starts(server: Machine, listen: str) -> None:
    refused = server.refusal("up", "--listen", listen)
    assert (refused["code"], "HOST:PORT" in refused["hint"]) == ("listen_invalid", True)
    assert not server.home.exists()


def test_relay_that_up_has_started_is_named_to_the_one_who_starts_another(server: Machine) -> None:
    started = server("up")["relay"]
    refused = server.refusal("relay", "up")
    assert (refused["code"], refused["url"], refused["pid"]) == ("relay_running", started["url"], started["pid"])


def test_status_says_how_to_start_a_relay_that_was_killed(server: Machine) -> None:
    relay = server("up")["relay"]
    assert "posthouse up  " not in server.run("status", options=()).stderr
    kill_and_wait(relay["pid"])
    shown = server.run("status", options=())
    assert "posthouse up  " in shown.stdout + shown.stderr


def test_killed_relay_and_daemon_come_back_with_up(server: Machine) -> None:
    up = server("up")
    for pid in (up["relay"]["pid"], up["daemon"]["pid"]):
        kill_and_wait(pid)
    again = server("up")
    assert (again["admitted"], again["name"]) == (True, up["name"])
    assert again["relay"]["pid"] != up["relay"]["pid"]


def test_up_of_a_host_that_joined_a_relay_elsewhere_runs_no_relay_of_its_own(server: Machine, laptop: Machine) -> None:
    started = server("up")
    address = started["relay"]["url"].removeprefix("http://")
    invite = server("invite", "--address", address)["invite"]
    joined = laptop("join", invite)
    laptop("down")
    again = laptop("up")
    assert (again["relay"], again["admitted"], again["name"]) == (None, True, joined["name"])
    assert not (laptop.home / "relay" / "relay.db").exists()
    assert laptop("status")["relay"]["running"] is False


def test_two_hosts_talk_after_up_invite_and_join(server: Machine, laptop: Machine) -> None:
    listen = "0.0.0.0:0"
    started = server("up", "--listen", listen)
    assert (started["admitted"], started["arrived"], started["name"]) == (True, True, host_name())
    assert not (server.home / "key.json").exists(), "one identity: the key of the mesh"
    again = server("up", "--listen", listen)
    assert (again["daemon"]["pid"], again["relay"]["pid"]) == (started["daemon"]["pid"], started["relay"]["pid"])

    address = f"127.0.0.1:{started['relay']['listen'].rpartition(':')[2]}"
    told = server.run("invite", "--address", address, options=()).stderr
    assert "posthouse invite --address NAME:" in told and "--listen" not in told, "it listens for others already"
    line = server("invite", "--address", address)["command"]
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
    assert laptop.refusal("inbox", "--direct", "--count", "1")["code"] == "daemon_has_it"
    assert laptop.run("doctor").returncode == 0

    server("mesh", "members", "main", "--remove", joined["name"])
    for _ in range(600):  # each asks a process
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
    assert laptop.run("doctor").returncode == 0, "a daemon without a mesh is no fault"


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
    assert "in no mesh yet" in done.stderr


def test_join_names_its_mistakes_and_a_host_keeps_its_name(server: Machine, laptop: Machine) -> None:
    server("up", "--name", "server")
    invite = server("invite")["invite"]
    relay = parse_invite(invite).relay
    refused = laptop.refusal("join", invite.replace(relay, f"ed25519:{'0' * 64}"), "--name", "laptop")
    assert (refused["code"], "new invite" in refused["hint"]) == ("relay_key_changed", True)
    assert laptop("join", invite, "--name", "laptop")["name"] == "laptop"
    for words in (("join", invite), ("up",)):
        again = laptop.run(*words, "--name", "desk", options=())
        assert again.returncode == 0, again.stderr
        assert "laptop" in again.stdout and "keeps that name" in again.stderr


def test_joining_again_passes_over_no_unread_mail_and_acts_for_the_host(server: Machine, laptop: Machine) -> None:
    started = server("up", "--listen", "127.0.0.1:0")
    server("send", started["name"], "unread note to self")
    again = server("up", "--listen", "127.0.0.1:0")
    assert again["admitted"] is True
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
