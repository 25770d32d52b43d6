"""The service definitions: what the service managers say about them, where they say something."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse.cli.service_units import ServiceDefinition, launchd_plist, service_file, systemd_unit
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError
from tests.cli.command_line import CommandLine

ODD = '/srv/a b/100% "$HOME"/\\x'


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def verify(unit: Path) -> None:
    """Let systemd verify a unit."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: a unit cannot be verified")
    command = [program, "verify", "--user", "--man=no", str(unit)]
    environ = {"XDG_RUNTIME_DIR": str(unit.parent), "HOME": str(unit.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_installed_unit_is_one_that_systemd_accepts(cli: CommandLine, config: Path) -> None:
    answer = cli("daemon", "install-service", "--relay", "relay.example:7420", "--json").value
    unit = Path(answer["path"])
    assert unit == config / "systemd" / "user" / "posthouse-daemon-main.service"
    assert unit.read_text() == answer["text"]
    verify(unit)


def test_control_systemd_refuses_a_unit_that_is_wrong(cli: CommandLine, config: Path) -> None:
    unit = Path(cli("daemon", "install-service", "--json").value["path"])
    unit.write_text(unit.read_text().replace("ExecStart=", "ExecStart=/nowhere/"))
    with pytest.raises(AssertionError):
        verify(unit)


def test_unit_does_not_restart_after_an_identity_error_and_gives_rights_away(cli: CommandLine, config: Path) -> None:
    text = cli("daemon", "install-service", "--show", "--json").value["text"]
    lines = text.splitlines()
    assert f"RestartPreventExitStatus={int(Exit.IDENTITY)}" in lines
    assert {"Restart=always", "NoNewPrivileges=yes", "ProtectSystem=strict", "UMask=0077", "LimitCORE=0"} <= set(lines)
    assert not config.exists(), "--show writes nothing"


def test_odd_paths_reach_the_daemon_whole(tmp_path: Path) -> None:
    program = shutil.which("true") or "/bin/true"
    service = ServiceDefinition("posthouse-odd", ODD, (program, ODD), (tmp_path,), {"POSTHOUSE_HOME": ODD})
    text = systemd_unit(service)
    assert f'ExecStart="{program}"' + r' "/srv/a b/100%% \"$$HOME\"/\\x"' in text
    assert r'Environment="POSTHOUSE_HOME=/srv/a b/100%% \"$HOME\"/\\x"' in text
    unit = tmp_path / "odd.service"
    unit.write_text(text)
    verify(unit)


def test_launchd_agent_rests_after_an_identity_error_and_comes_back_after_others(tmp_path: Path) -> None:
    for code, becomes in ((4, 0), (1, 1), (0, 0)):
        command = (sys.executable, "-c", f"raise SystemExit({code})")
        service = ServiceDefinition("posthouse-daemon-m", "a daemon", command, (tmp_path,), {"A": "b"})
        agent = plistlib.loads(launchd_plist(service).encode())
        assert subprocess.run(agent["ProgramArguments"], timeout=30).returncode == becomes
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert (agent["Label"], agent["EnvironmentVariables"]) == ("posthouse-daemon-m", {"A": "b"})


def test_launchd_agent_passes_its_end_on_to_the_server_and_waits_for_it(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    server = (
        "import signal, sys, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path({str(ended)!r}).write_text('') or 0))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    service = ServiceDefinition("posthouse-relay", "a relay", (sys.executable, "-c", server), (tmp_path,), {})
    command = plistlib.loads(launchd_plist(service).encode())["ProgramArguments"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        agent.terminate()
        assert agent.wait(60) == 0
    assert ended.exists()


def test_each_system_has_its_service_directory_and_others_are_refused(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert service_file("x", environ, "darwin") == tmp_path / "Library" / "LaunchAgents" / "x.plist"
    assert service_file("x", environ, "linux") == tmp_path / ".config" / "systemd" / "user" / "x.service"
    with pytest.raises(PosthouseError) as caught:
        service_file("x", environ, "plan9")
    assert caught.value.code == "service_unsupported"


def test_on_macos_the_services_are_launchd_agents_and_the_notes_name_launchctl(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    for server in ("daemon", "relay"):
        written = cli(server, "install-service")
        path = Path(written.out.split()[1])
        assert path.parent == tmp_path / "Library" / "LaunchAgents"
        command = plistlib.loads(path.read_bytes())["ProgramArguments"]
        assert [word for word in command if word in (server, "up")] == [server, "up"]
        assert f"launchctl bootstrap gui/{os.getuid()} {path}" in written.err
        assert "launchctl bootout gui/" in cli(server, "uninstall-service").err
        assert not path.exists()


def test_uninstalled_unit_is_gone_and_another_mesh_stays(cli: CommandLine, config: Path) -> None:
    cli("daemon", "install-service")
    other = Path(cli("daemon", "install-service", "--mesh", "team", "--json").value["path"])
    assert cli("daemon", "uninstall-service", "--json").value["removed"] is True
    assert cli("daemon", "uninstall-service", "--json").value["removed"] is False
    assert [path.name for path in (config / "systemd" / "user").iterdir()] == [other.name]
