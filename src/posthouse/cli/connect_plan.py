"""Planning the changes of `posthouse connect`: the user's request, the files it names, and the change to each.

A plan holds the content that it was made from, and is applied only if the file still has it. Only `Plan.apply` writes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from posthouse.cli.connect_agents import PROGRAMS, AgentProgram, Scope, user_home
from posthouse.cli.connect_file import ConfigFile, Content
from posthouse.cli.connect_hooks import HOOKS, HookFile, Line, hook_line
from posthouse.cli.connect_json import remove_entry, set_entry
from posthouse.cli.connect_toml import remove_table, set_table
from posthouse.cli.mcp import ServerEntry, server_entry
from posthouse.cli.options import DaemonOptions
from posthouse.model.errors import error

Edit = Callable[[str], str]
FileEdit = tuple[ConfigFile, Edit]


@dataclass(frozen=True)
class Plan:
    """A change that is not applied yet."""

    file: ConfigFile
    before: Content | None
    after: bytes

    @property
    def is_change(self) -> bool:
        """True if the file would change."""
        return (b"" if self.before is None else self.before.data) != self.after

    @property
    def diff(self) -> str:
        """The change as a unified diff, empty if there is none."""
        old = "" if self.before is None else self.before.data.decode()
        source = "/dev/null" if self.before is None else str(self.file.path)
        lines = difflib.unified_diff(
            old.splitlines(), self.after.decode().splitlines(), source, str(self.file.path), lineterm=""
        )
        return "\n".join(lines)

    @property
    def finding(self) -> str:
        """The finding of `--status` if the file would change."""
        return f"{self.file.path} " + (
            "does not exist" if self.before is None else "differs from what connect would write"
        )

    def apply(self) -> Path | None:
        """Write the file; return the path of the backup, if there was a file before."""
        from posthouse.model.clock import format_utc, system_clock

        stamp = "".join(each for each in format_utc(system_clock().wall_ns()) if each.isalnum())
        return self.file.replace(self.before, self.after, stamp)


def plan_change(file: ConfigFile, edit: Edit) -> Plan:
    """Read a file and return the change that `edit` makes to its text; nothing is written."""
    before = file.read()
    try:
        text = "" if before is None else before.data.decode()
        return Plan(file, before, edit(text).encode())
    except ValueError as fault:
        raise error("agent_config_unreadable", path=str(file.path), reason=str(fault)) from fault


def set_server(program: AgentProgram, text: str, name: str, entry: ServerEntry) -> str:
    """Return the text with the entry of the MCP server."""
    wanted = program.entry(entry)
    if program.format == "toml":
        return set_table(text, program.group, name, wanted)
    return set_entry(text, program.group, name, wanted, is_lenient=program.format == "jsonc")


def remove_server(program: AgentProgram, text: str, name: str) -> str:
    """Return the text without the entry of the MCP server."""
    if not text.strip():
        return text
    if program.format == "toml":
        return remove_table(text, program.group, name)
    return remove_entry(text, program.group, name, is_lenient=program.format == "jsonc")


def plan_files(edits: Sequence[FileEdit]) -> list[Plan]:
    """Return one plan per file: Gemini CLI has its servers and its hooks in the same one."""
    by_file: dict[ConfigFile, list[Edit]] = {}
    for file, edit in edits:
        by_file.setdefault(file, []).append(edit)
    return [plan_change(file, _in_turn(each)) for file, each in by_file.items()]


def _in_turn(edits: Sequence[Edit]) -> Edit:
    return lambda text: reduce(lambda changed, edit: edit(changed), edits, text)


@dataclass(frozen=True)
class Request:
    """What to configure: the arguments of one `connect`."""

    tool: str
    scope: Scope | None
    file: Path | None
    name: str
    agent: str | None
    daemon_options: DaemonOptions

    @property
    def program(self) -> AgentProgram:
        """The coding agent."""
        return PROGRAMS[self.tool]

    @property
    def entry(self) -> ServerEntry:
        """The command line of the MCP server."""
        return server_entry(self.daemon_options, self.agent)

    @property
    def command(self) -> str | None:
        """The agent's own command that adds the server, if it has one."""
        return None if self.program.command is None else self.program.command(self.name, self.entry)

    @property
    def hooks(self) -> HookFile:
        """The hooks of the coding agent; raises agent_wake_unsupported."""
        found = HOOKS.get(self.tool)
        if found is None:
            raise error("agent_wake_unsupported", tool=self.tool)
        return found

    def server_file(self) -> ConfigFile:
        """Return the file of the MCP server; raises agent_scope_unsupported."""
        if self.file is not None:
            whole = self.file.expanduser().absolute()
            return ConfigFile(whole.parent, (whole.name,))
        locate = self.program.files.get(self.scope or self.program.default)
        if locate is None:
            hint = f"Run `{self.command}`." if self.command else f"Use --scope {self.program.default}."
            raise error("agent_scope_unsupported", tool=self.tool, scope=self.scope, hint=hint)
        return locate(user_home(), Path.cwd(), os.environ)

    def has_server_file(self) -> bool:
        """Return False if only the agent's own command can add the server in this scope."""
        return self.file is not None or (self.scope or self.program.default) in self.program.files

    def hooks_file(self) -> ConfigFile:
        """Return the file of the hooks."""
        return self.hooks.files[self.scope or self.program.default](user_home(), Path.cwd(), os.environ)

    def line(self) -> Line:
        """Return the function that makes the command lines of hooks."""
        from posthouse.cli.service_units import program

        return hook_line(self.tool, program(), self.agent, hook_directory(self.daemon_options))


def hook_directory(daemon_options: DaemonOptions) -> Path | None:
    """Return the directory of the daemon for hooks, or None if it is the default one."""
    from posthouse.files import HOME_ENV

    is_default = daemon_options.directory is None and not os.environ.get(HOME_ENV)
    return None if is_default else daemon_options.root()
