from __future__ import annotations

import json
import os
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from posthouse.cli import connect
from posthouse.cli.connect_agents import PROGRAMS
from tests.cli.command_line import CommandLine, put

TOOLS = tuple(PROGRAMS)
JSON_TOOLS = tuple(tool for tool, program in PROGRAMS.items() if program.format != "toml")
#: tool -> its file, below the home or the project, and where its servers stand
FILES = {
    "claude-code": ("project/.mcp.json", "mcpServers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini-cli": (".gemini/settings.json", "mcpServers"),
    "vscode": ("project/.vscode/mcp.json", "servers"),
    "copilot-cli": (".copilot/mcp-config.json", "mcpServers"),
}


def file_of(home: Path, tool: str) -> Path:
    return home / FILES[tool][0]


def servers(home: Path, tool: str) -> Any:
    text = file_of(home, tool).read_text()
    value = tomllib.loads(text) if tool == "codex" else json.loads(text)
    return value[FILES[tool][1]]


def test_every_program_that_is_known_can_be_named() -> None:
    assert set(get_args(connect.Tool)) == set(PROGRAMS) == set(FILES)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_change_is_shown_and_nothing_is_written(tool: str, plain: CommandLine, home: Path) -> None:
    before = sorted(home.rglob("*"))
    outcome = plain("connect", tool)
    assert outcome.exit == 0
    assert f"+++ {file_of(home, tool)}" in outcome.out
    assert '"mcp"' in outcome.out
    assert "nothing was written" in outcome.err
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("tool", TOOLS)
def test_writing_makes_the_entry_that_was_shown(tool: str, plain: CommandLine, home: Path) -> None:
    shown = plain("connect", tool, "--json").value
    written = plain("connect", tool, "--write", "--json").value
    assert (shown["diff"], shown["written"], written["written"]) == (written["diff"], False, True)
    entry = servers(home, tool)["posthouse"]
    assert entry == written["entry"]
    assert entry["args"][-1] == "mcp"
    assert os.access(entry["command"], os.X_OK)
    assert stat.S_IMODE(file_of(home, tool).stat().st_mode) == 0o600
    again = plain("connect", tool, "--write", "--json").value
    assert (again["changed"], again["written"], again["diff"]) == (False, False, "")
    assert [path.name for path in file_of(home, tool).parent.iterdir() if path.suffix in (".bak", ".tmp")] == []


def test_the_fields_are_those_the_programs_read(plain: CommandLine, home: Path) -> None:
    entries = {tool: plain("connect", tool, "--json").value["entry"] for tool in TOOLS}
    assert {tool: sorted(entry) for tool, entry in entries.items()} == {
        "claude-code": ["args", "command", "type"],
        "codex": ["args", "command"],
        "cursor": ["args", "command"],
        "gemini-cli": ["args", "command"],
        "vscode": ["args", "command", "type"],
        "copilot-cli": ["args", "command", "tools", "type"],
    }
    assert (entries["claude-code"]["type"], entries["vscode"]["type"]) == ("stdio", "stdio")
    assert (entries["copilot-cli"]["type"], entries["copilot-cli"]["tools"]) == ("local", ["*"])


@pytest.mark.parametrize("tool", TOOLS)
def test_daemon_and_home_that_were_named_are_passed_on(tool: str, cli: CommandLine, home: Path) -> None:
    assert cli("connect", tool, "--write", "--mesh", "team", "--dir", "here", "--name", "team-mail").exit == 0
    entry = servers(home, tool)["team-mail"]
    assert entry["args"][-5:] == ["mcp", "--mesh", "team", "--dir", str(home / "project" / "here")]
    assert entry["env"] == {"POSTHOUSE_HOME": str(cli.home)}


@pytest.mark.parametrize("tool", JSON_TOOLS)
def test_other_entries_and_the_mode_stay_and_the_old_file_is_kept(tool: str, plain: CommandLine, home: Path) -> None:
    group = FILES[tool][1]
    old: dict[str, Any] = {
        "theme": "dark",
        group: {"other": {"command": "x", "args": ["ü"]}},
        "last": [1, 2.5, None, True, {}],
    }
    path = put(file_of(home, tool), json.dumps(old, indent=4, ensure_ascii=False), 0o640)
    answer = plain("connect", tool, "--write", "--json").value
    new = json.loads(path.read_text())
    assert new[group].pop("posthouse") == answer["entry"]
    assert new == old and list(new) == list(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    backup = Path(answer["backup"])
    assert json.loads(backup.read_text()) == old and stat.S_IMODE(backup.stat().st_mode) == 0o640
    assert all(line[:1] in "+- @" for line in answer["diff"].splitlines())


def test_comments_and_trailing_commas_stay_where_the_program_reads_them(plain: CommandLine, home: Path) -> None:
    text = (
        '// mine\n{\n\t"servers": {\n\t\t"a": {"command": "x"}, // first\n\t\t/* second */\n\t},\n\t"inputs": [],\n}\n'
    )
    path = put(file_of(home, "vscode"), text)
    assert plain("connect", "vscode", "--write").exit == 0
    new = path.read_text()
    for kept in ("// mine\n", "// first\n", "/* second */\n", '\t"inputs": [],\n}\n'):
        assert kept in new
    assert '\n\t\t"posthouse": {\n\t\t\t"type": "stdio"' in new


def test_codex_keeps_comments_and_other_tables(plain: CommandLine, home: Path) -> None:
    text = '# mine\nmodel = "m" # best\n\n[mcp_servers.other] # theirs\ncommand = "x"\n\n[profiles.a]\nx = 1\n'
    path = put(file_of(home, "codex"), text)
    assert plain("connect", "codex", "--write").exit == 0
    assert path.read_text().startswith(text + "\n[mcp_servers.posthouse]\n")
    assert tomllib.loads(path.read_text())["profiles"] == {"a": {"x": 1}}


def test_existing_entry_is_changed_in_place_and_keeps_its_other_fields(plain: CommandLine, home: Path) -> None:
    text = (
        "[mcp_servers.posthouse] # mail\nenabled = false\n"
        'args = [ # old\n  "mcp",\n  "--mesh", "old",\n]\ncommand = "/old/posthouse"\n\n# next\n[tools]\nweb = true\n'
    )
    codex = put(file_of(home, "codex"), text)
    assert plain("connect", "codex", "--write").exit == 0
    new = codex.read_text()
    assert tomllib.loads(new)["mcp_servers"]["posthouse"]["enabled"] is False
    assert "/old/" not in new and '"old"' not in new
    assert new.startswith("[mcp_servers.posthouse] # mail\nenabled = false\n")
    assert new.endswith("\n\n# next\n[tools]\nweb = true\n")
    gemini = put(file_of(home, "gemini-cli"), '{"mcpServers": {"posthouse": {"command": "old", "trust": true}}}')
    assert plain("connect", "gemini-cli", "--write").exit == 0
    entry = json.loads(gemini.read_text())["mcpServers"]["posthouse"]
    assert entry["trust"] is True and entry["args"] == ["mcp"]


def test_an_inline_table_is_changed_in_place(plain: CommandLine, home: Path) -> None:
    path = put(file_of(home, "codex"), '[mcp_servers]\nposthouse = { command = "x", enabled = true }\n# mine\n')
    assert plain("connect", "codex", "--write").exit == 0
    entry = tomllib.loads(path.read_text())["mcp_servers"]["posthouse"]
    assert entry["enabled"] is True and entry["args"] == ["mcp"] and entry["command"] != "x"
    assert path.read_text().endswith("}\n# mine\n")


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("cursor", '{"mcpServers": {'),
        ("cursor", "[]"),
        ("cursor", '{"mcpServers": []}'),
        ("cursor", '{"mcpServers": {"posthouse": "x"}}'),
        ("cursor", '{"mcpServers": {}, "mcpServers": {}}'),
        ("cursor", "{} // JSON has no comments"),
        ("cursor", '{"a": 1,}'),
        ("vscode", '{"servers": {} /* open'),
        ("codex", "model = "),
        ("codex", 'mcp_servers = { other = { command = "x" } }\n'),
        ("codex", "[mcp_servers]\nposthouse = 7\n"),
        ("codex", "mcp_servers = 7\n"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(
    tool: str, text: str, plain: CommandLine, home: Path
) -> None:
    path = put(file_of(home, tool), text)
    outcome = plain("connect", tool, "--write", "--json")
    assert (outcome.exit, outcome.problem["code"]) == (1, "agent_config_unreadable")
    assert path.read_text() == text
    assert len(list(path.parent.iterdir())) == 1


def test_bytes_that_are_no_text_are_left_alone(plain: CommandLine, home: Path) -> None:
    path = put(file_of(home, "cursor"), "")
    path.write_bytes(b"\xff\xfe{}")
    assert plain("connect", "cursor", "--write", "--json").problem["code"] == "agent_config_unreadable"


@pytest.mark.parametrize("what", ["link", "dangling", "directory_link", "directory", "fifo"])
def test_a_file_that_leads_elsewhere_is_not_written(what: str, plain: CommandLine, home: Path) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mcp.json").write_text("{}")
    folder = home / "project" / ".vscode"
    if what == "directory_link":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
        path = folder / "mcp.json"
        if what == "directory":
            path.mkdir()
        elif what == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(elsewhere / ("mcp.json" if what == "link" else "new.json"))
    for flags in ((), ("--write",)):
        outcome = plain("connect", "vscode", "--json", *flags)
        assert (outcome.exit, outcome.problem["code"]) == (1, "agent_config_unsafe")
    assert [path.name for path in elsewhere.iterdir()] == ["mcp.json"]
    assert (elsewhere / "mcp.json").read_text() == "{}"


def test_a_file_can_be_named_and_a_scope_without_a_file_says_what_to_do(plain: CommandLine, home: Path) -> None:
    assert plain("connect", "cursor", "--file", "other.json", "--write").exit == 0
    assert "posthouse" in json.loads((home / "project" / "other.json").read_text())["mcpServers"]
    refused = plain("connect", "claude-code", "--scope", "user", "--json").problem
    assert refused["code"] == "agent_scope_unsupported"
    assert "claude mcp add --scope user posthouse -- " in refused["hint"]
    assert plain("connect", "emacs").exit == 2
    assert plain("connect", "cursor", "--name", "a b").exit != 0


def test_directories_named_by_environment_variables_are_used(
    plain: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CODEX_HOME", "COPILOT_HOME", "XDG_CONFIG_HOME"):
        (home / name).mkdir()
        monkeypatch.setenv(name, str(home / name))
    assert plain("connect", "codex", "--write").exit == 0
    assert plain("connect", "copilot-cli", "--write").exit == 0
    assert plain("connect", "vscode", "--scope", "user", "--write").exit == 0
    assert (home / "CODEX_HOME" / "config.toml").exists()
    assert (home / "COPILOT_HOME" / "mcp-config.json").exists()
    assert (home / "XDG_CONFIG_HOME" / "Code" / "User" / "mcp.json").exists()


def test_file_that_cannot_be_written_is_named_as_the_user_knows_it(plain: CommandLine, small_disk: Path) -> None:
    path = small_disk / "mcp.json"
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    outcome = plain("connect", "claude-code", "--write", "--file", str(path))
    assert outcome.exit != 0
    assert f"the system refuses access to {path}: Read-only file system" in outcome.err
