"""What bash offers after Tab, with the script that `posthouse completion` prints, on a host that runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.cli.join import host_name
from tests.cli.daemon.machine import BOUND_S, Machine

ROOT = Path(__file__).resolve().parents[3]
#: Bash calls the registered function with the words in COMP_WORDS and reads COMPREPLY.
_TAB = """
source "$1"; shift
registered=($(complete -p posthouse))
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); cur="${!#}"
"${registered[2]}" posthouse "$cur" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

pytestmark = pytest.mark.xdist_group("cli-daemon")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("c") / "h")
    machine("up")
    machine("agent", "add", "claude")
    machine("topic", "create", "builds.main")
    machine("lock", "acquire", "deploy/prod")
    yield machine
    machine.run("down")


@pytest.fixture(scope="module")
def script(host: Machine) -> Path:
    path = host.home / "completion.bash"
    path.write_text(host("completion", "bash")["script"])
    return path


def offered(host: Machine, script: Path, *words: str) -> list[str]:
    """Return what bash offers for a line; the last word is the one before the cursor."""
    programs = Path(sys.executable).parent
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "POSTHOUSE_HOME": str(host.home),
        "HOME": str(host.home),
    }
    line = ["bash", "-c", _TAB, "bash", str(script), "posthouse", *words]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=BOUND_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_recipients_are_agents_hosts_and_topics(host: Machine, script: Path) -> None:
    assert {"claude", host_name(), r"\#builds.main"} <= set(offered(host, script, "send", ""))
    assert offered(host, script, "send", "cl") == ["claude"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("inbox", "--agent", ""), "claude"),
        (("agent", "retire", ""), "claude"),
        (("agent", "rename", ""), "claude"),
        (("trust", ""), host_name()),
        (("send", "claude", "hello", "--mention", ""), host_name()),
        (("invite", ""), "main"),
        (("agent", "pause", ""), "claude"),
        (("topic", "subscribe", "bu"), "builds.main"),
        (("lock", "release", "dep"), "deploy/prod"),
        (("use", ""), "main"),
        (("send", "--output", ""), "csv"),
    ],
)
def test_names_are_offered_where_they_belong(host: Machine, script: Path, words: tuple[str, ...], name: str) -> None:
    assert name in offered(host, script, *words)


def test_no_name_and_no_error_is_offered_without_a_daemon(host: Machine, script: Path, tmp_path: Path) -> None:
    assert offered(Machine(tmp_path / "empty"), script, "send", "") == []


def test_members_of_a_mesh_and_peers_are_one_table(host: Machine) -> None:
    peers = host.run("peers", options=()).stdout
    assert "claude@" in peers and "online" in peers
    assert host.run("mesh", "members", "main", options=()).stdout == peers
