"""The supported coding agents: where each stores its MCP servers, and in which form.

If you add an agent: 1. check its file, key and fields against its documentation, and with the program itself if you
can; 2. add a page in docs/start; 3. add it to tests/cli/test_connect.py, which writes its file and reads it back.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posthouse.cli.connect_file import ConfigFile
from posthouse.cli.mcp import ServerEntry

Scope = Literal["user", "project"]
Format = Literal["json", "jsonc", "toml"]
#: home, project and environment -> the file
Locate = Callable[[Path, Path, Mapping[str, str]], ConfigFile]


@dataclass(frozen=True)
class AgentProgram:
    """One coding agent."""

    title: str
    format: Format
    #: the key or table that holds the entries
    group: str
    files: Mapping[Scope, Locate]
    default: Scope
    #: returns the fields of an entry
    entry: Callable[[ServerEntry], dict[str, Any]]
    #: returns the agent's own command that adds the entry, if it has one
    command: Callable[[str, ServerEntry], str] | None = None


def below_home(*parts: str, variable: str | None = None) -> Locate:
    """Return a locator of a file in the home; an environment variable, if set, replaces the home and the first part."""

    def locate(home: Path, project: Path, environ: Mapping[str, str]) -> ConfigFile:
        given = environ.get(variable) if variable is not None else None
        return ConfigFile(Path(given), parts[1:]) if given else ConfigFile(home, parts)

    return locate


def in_project(*parts: str) -> Locate:
    """Return a locator of a file in the project."""
    return lambda home, project, environ: ConfigFile(project, parts)


def _vscode_user(home: Path, project: Path, environ: Mapping[str, str]) -> ConfigFile:
    if sys.platform == "darwin":
        return ConfigFile(home, ("Library", "Application Support", "Code", "User", "mcp.json"))
    given = environ.get("XDG_CONFIG_HOME")
    base = ConfigFile(Path(given), ()) if given else ConfigFile(home, (".config",))
    return ConfigFile(base.anchor, (*base.parts, "Code", "User", "mcp.json"))


def _plain(entry: ServerEntry) -> dict[str, Any]:
    started: dict[str, Any] = {"command": entry.command, "args": list(entry.args)}
    return started | ({"env": dict(entry.env)} if entry.env else {})


def _typed(kind: str) -> Callable[[ServerEntry], dict[str, Any]]:
    return lambda entry: {"type": kind} | _plain(entry)


def _copilot(entry: ServerEntry) -> dict[str, Any]:
    return _typed("local")(entry) | {"tools": ["*"]}


def _add_command(*words: str) -> Callable[[str, ServerEntry], str]:
    def command(name: str, entry: ServerEntry) -> str:
        env = [part for key, value in entry.env.items() for part in ("--env", f"{key}={value}")]
        return shlex.join([*words, name, *env, "--", *entry.words])

    return command


def _code_add(name: str, entry: ServerEntry) -> str:
    return shlex.join(["code", "--add-mcp", json.dumps({"name": name} | _plain(entry))])


PROGRAMS: dict[str, AgentProgram] = {
    "claude-code": AgentProgram(
        "Claude Code",
        "json",
        "mcpServers",
        # Claude Code keeps other data in the file in the home and rewrites it while it runs: there we use its command
        {"project": in_project(".mcp.json")},
        "project",
        _typed("stdio"),
        _add_command("claude", "mcp", "add", "--scope", "user"),
    ),
    "codex": AgentProgram(
        "Codex",
        "toml",
        "mcp_servers",
        {
            "user": below_home(".codex", "config.toml", variable="CODEX_HOME"),
            "project": in_project(".codex", "config.toml"),
        },
        "user",
        _plain,
        _add_command("codex", "mcp", "add"),
    ),
    "cursor": AgentProgram(
        "Cursor",
        "json",
        "mcpServers",
        {"user": below_home(".cursor", "mcp.json"), "project": in_project(".cursor", "mcp.json")},
        "user",
        _plain,
    ),
    "gemini-cli": AgentProgram(
        "Gemini CLI",
        "jsonc",
        "mcpServers",
        {"user": below_home(".gemini", "settings.json"), "project": in_project(".gemini", "settings.json")},
        "user",
        _plain,
    ),
    "vscode": AgentProgram(
        "VS Code",
        "jsonc",
        "servers",
        {"user": _vscode_user, "project": in_project(".vscode", "mcp.json")},
        "project",
        _typed("stdio"),
        _code_add,
    ),
    "copilot-cli": AgentProgram(
        "Copilot CLI",
        "json",
        "mcpServers",
        {"user": below_home(".copilot", "mcp-config.json", variable="COPILOT_HOME")},
        "user",
        _copilot,
    ),
}


def user_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home directory of this user, where agents keep their files."""
    return Path(environ.get("HOME") or Path.home())
