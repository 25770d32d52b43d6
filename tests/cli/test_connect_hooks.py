"""`posthouse connect --wake`: the hooks in the files of coding agents, written, changed and taken away again."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from posthouse.cli.connect_hooks import HOOKS
from tests.cli.command_line import CommandLine, put

FILES = {
    "claude-code": "project/.claude/settings.local.json",
    "codex": ".codex/hooks.json",
    "cursor": ".cursor/hooks.json",
    "gemini-cli": ".gemini/settings.json",
}
EVENTS = {
    "claude-code": ["SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "StopFailure", "SessionEnd"],
    "codex": ["SessionStart", "UserPromptSubmit", "PostToolUse", "Stop"],
    "cursor": ["sessionStart", "stop", "sessionEnd"],
    "gemini-cli": ["SessionStart", "BeforeAgent", "AfterTool", "SessionEnd"],
}
TOOLS = tuple(FILES)


def hooks_of(home: Path, tool: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / FILES[tool]).read_text())["hooks"]
    return found


def lines_of(home: Path, tool: str) -> list[str]:
    items = [item for event in hooks_of(home, tool).values() for item in event]
    return [each["command"] for item in items for each in item.get("hooks", [item])]


def test_every_program_with_hooks_is_in_this_table() -> None:
    assert {tool: list(HOOKS[tool].items) for tool in HOOKS} == EVENTS


@pytest.mark.parametrize("tool", TOOLS)
def test_hooks_are_shown_first_and_written_on_request(tool: str, plain: CommandLine, home: Path) -> None:
    shown = plain("connect", tool, "--wake")
    assert f"+++ {home / FILES[tool]}" in shown.out
    assert "nothing was written" in shown.err
    assert not (home / FILES[tool]).exists()
    assert plain("connect", tool, "--wake", "--write").exit == 0
    assert list(hooks_of(home, tool)) == EVENTS[tool]
    again = plain("connect", tool, "--wake", "--write", "--json").value
    assert [each["changed"] for each in again["files"]] == [False] * len(again["files"])


@pytest.mark.parametrize("tool", TOOLS)
def test_other_hooks_stay_and_removing_restores_the_file(tool: str, plain: CommandLine, home: Path) -> None:
    event = EVENTS[tool][-1]
    mine = f'"{event}": [\n            {{ "command": "mine" }}\n        ]'
    before = f'{{\n    "model": "x",\n    "hooks": {{\n        {mine}\n    }}\n}}\n'
    path = put(home / FILES[tool], before)
    assert plain("connect", tool, "--wake", "--write").exit == 0
    written = path.read_text()
    assert '{ "command": "mine" }' in written  # its text is untouched
    assert hooks_of(home, tool)[event][0] == {"command": "mine"}
    assert plain("connect", tool, "--wake", "--remove").exit == 0
    left = json.loads(path.read_text())
    assert left["hooks"] == {event: [{"command": "mine"}]}
    assert left["model"] == "x"
    assert plain("connect", tool, "--wake", "--remove", "--json").value["changed"] is False


def test_removing_without_wake_takes_the_server_away_too(plain: CommandLine, home: Path) -> None:
    for tool, server in (("codex", ".codex/config.toml"), ("claude-code", "project/.mcp.json")):
        put(home / server, "" if tool == "codex" else "{}\n")
        assert plain("connect", tool, "--wake", "--write").exit == 0
        assert "posthouse" in (home / server).read_text()
        assert plain("connect", tool, "--remove").exit == 0
        assert "posthouse" not in (home / server).read_text()
        assert "posthouse" not in (home / FILES[tool]).read_text()


def test_a_new_name_replaces_the_hooks_where_they_stand(plain: CommandLine, home: Path) -> None:
    plain("connect", "codex", "--wake", "--write")
    path = home / FILES["codex"]
    value = json.loads(path.read_text())
    value["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "later"}]})
    path.write_text(json.dumps(value))
    plain("connect", "codex", "--wake", "--write", "--as", "reviewer")
    assert [len(items) for items in hooks_of(home, "codex").values()] == [1, 1, 1, 2]
    assert "--as reviewer" in lines_of(home, "codex")[3]
    assert lines_of(home, "codex")[4] == "later"


def test_waiters_of_claude_code_run_in_the_background_and_wake(plain: CommandLine, home: Path) -> None:
    plain("connect", "claude-code", "--wake", "--write")
    for event in ("SessionStart", "Stop", "StopFailure"):
        waiter = hooks_of(home, "claude-code")[event][0]["hooks"][-1]
        assert (waiter["asyncRewake"], waiter["timeout"]) == (True, 86_400)
        assert waiter["command"].endswith("hook claude-code wait")
    rest = [each for each in lines_of(home, "claude-code") if not each.endswith(" wait")]
    assert [line.split()[-1] for line in rest] == ["session-start", "prompt", "tool", "turn-failed", "session-end"]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_line_is_silent_once_posthouse_is_gone(tool: str, plain: CommandLine, home: Path) -> None:
    plain("connect", tool, "--wake", "--write")
    for line in lines_of(home, tool):
        word = shlex.quote(shlex.split(line)[2])
        gone = line.replace(word, "/nonexistent/posthouse")
        assert gone.startswith("command -v /nonexistent/posthouse >/dev/null || exit 0; exec /nonexistent/posthouse ")
        done = subprocess.run(["sh", "-c", gone], capture_output=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_daemon_that_was_named_is_passed_to_the_hooks(plain: CommandLine, home: Path) -> None:
    plain("connect", "codex", "--wake", "--write", "--dir", "a b")
    assert all(line.endswith(f"--dir '{home}/project/a b'") for line in lines_of(home, "codex"))


def test_user_scope_of_claude_code_names_the_command_for_the_server(plain: CommandLine, home: Path) -> None:
    outcome = plain("connect", "claude-code", "--wake", "--scope", "user", "--write")
    assert outcome.exit == 0
    assert "claude mcp add --scope user posthouse" in outcome.err
    assert list(json.loads((home / ".claude/settings.json").read_text())["hooks"]) == EVENTS["claude-code"]


def test_codex_hooks_have_to_be_trusted_and_connect_says_so(plain: CommandLine, home: Path) -> None:
    assert "trust" in plain("connect", "codex", "--wake", "--write").err
    assert "trusted_hash" not in (home / ".codex/config.toml").read_text()


def test_program_without_hooks_is_refused_with_another_way(plain: CommandLine, home: Path) -> None:
    problem = plain("connect", "vscode", "--wake", "--json").problem
    assert problem["code"] == "agent_wake_unsupported"
    assert "--on-mail" in problem["hint"]


@pytest.mark.parametrize(
    "words",
    [("--write", "--remove"), ("--write", "--status"), ("--wake", "--file", "x.json"), ("--as", "Not A Name")],
)
def test_arguments_that_exclude_each_other_change_nothing(
    words: tuple[str, ...], plain: CommandLine, home: Path
) -> None:
    assert plain("connect", "codex", *words).exit == 2
    assert not (home / ".codex").exists()


@pytest.mark.parametrize("text", ['{"hooks": []}', '{"hooks": {"Stop": {}}}', '{"hooks": ', "[]"])
def test_file_of_another_shape_is_left_alone(text: str, plain: CommandLine, home: Path) -> None:
    path = put(home / FILES["codex"], text)
    problem = plain("connect", "codex", "--wake", "--write", "--json").problem
    assert problem["code"] == "agent_config_unreadable"
    assert path.read_text() == text
    assert not (home / ".codex/config.toml").exists()


def test_status_names_what_is_missing(plain: CommandLine, home: Path) -> None:
    before = plain("connect", "codex", "--wake", "--status", "--json")
    assert before.exit == 1
    assert {each["name"]: each["state"] for each in before.value["checks"]} == {
        "server": "fail",
        "hooks": "fail",
        "daemon": "fail",
    }
    assert "config.toml does not exist" in before.value["checks"][0]["text"]
    plain("connect", "codex", "--wake", "--write")
    after = plain("connect", "codex", "--wake", "--status", "--json").value["checks"]
    assert {each["name"]: each["state"] for each in after} == {"server": "ok", "hooks": "ok", "daemon": "fail"}


def test_guard_of_a_home_that_was_moved_asks_the_daemon_of_that_home(cli: CommandLine, home: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], check=True)
    assert cli("guard", "install").exit == 0
    (guard,) = json.loads((home / ".claude/settings.json").read_text())["hooks"]["PreToolUse"]
    assert guard["hooks"][0]["command"].endswith(f"hook claude-code guard --dir {cli.home}/daemon")
    assert f"guard check --dir {cli.home}/daemon || exit" in (home / "project/.git/hooks/pre-commit").read_text()
