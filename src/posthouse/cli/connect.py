"""`posthouse connect`: configure a coding agent to use posthouse. Shows the change; `--write` applies it.

The change is planned from the current file, shown as a diff, and written only if the file has not changed since.
Other entries and comments stay, and a layout that cannot be changed safely is refused.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Path as PathValidator

from posthouse.cli.connect_agents import AgentProgram
from posthouse.cli.connect_file import ConfigFile, Content
from posthouse.cli.connect_json import set_entry
from posthouse.cli.mcp import ServerEntry
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output
from posthouse.model.errors import error


def set_table(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    """Return the text with `wanted` set in the table [group.name]; everything else stays as it is.

    Raises ValueError if the text is not TOML or has something other than a table there.
    """
    expected = tomllib.loads(text)
    servers = _child_table(expected, group)
    is_new = name not in servers
    current = _child_table(servers, name)
    differing = {key: value for key, value in wanted.items() if current.get(key) != value}
    if not differing:
        return text
    current.update(differing)
    changed = _append_table(text, group, name, wanted) if is_new else _update_table(text, group, name, differing)
    try:
        is_expected = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        is_expected = False
    if not is_expected:
        raise ValueError(f"the layout of [{group}.{name}] cannot be changed safely")
    return changed


def _child_table(parent: dict[str, Any], name: str) -> dict[str, Any]:
    child = parent.setdefault(name, {})
    if not isinstance(child, dict):
        raise ValueError(f"{name} is not a table")
    return child


def _append_table(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    """Add the table at the end of the text: tomlkit would put it between the tables that are there."""
    import tomlkit

    items = {key: _toml_item(value) for key, value in wanted.items()}
    gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
    return _keep_newlines(text, text + gap + tomlkit.dumps({group: {name: items}}))


def _update_table(text: str, group: str, name: str, differing: Mapping[str, Any]) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(text)
        for key, value in differing.items():
            document[group][name][key] = _toml_item(value)
    except TOMLKitError as fault:
        raise ValueError(f"the layout of [{group}.{name}] cannot be changed: {fault}") from fault
    return _keep_newlines(text, tomlkit.dumps(document))


def _toml_item(value: Any) -> Any:
    """Return a mapping as an inline table, which stays inside the table that it is set in."""
    import tomlkit

    if not isinstance(value, dict):
        return value
    inline = tomlkit.inline_table()
    inline.update(value)
    return inline


def _keep_newlines(before: str, after: str) -> str:
    """Return `after` with CRLF line ends if `before` has no other ones; tomlkit ends new lines with LF."""
    is_crlf = "\n" in before and before.count("\n") == before.count("\r\n")
    return re.sub(r"(?<!\r)\n", "\r\n", after) if is_crlf else after


@dataclass(frozen=True)
class Plan:
    """A change that is not applied yet."""

    file: ConfigFile
    before: Content | None
    after: bytes

    @property
    def is_change(self) -> bool:
        return self.before is None or self.before.data != self.after

    @property
    def diff(self) -> str:
        """The change as a unified diff, empty if there is none."""
        old = "" if self.before is None else self.before.data.decode()
        source = "/dev/null" if self.before is None else str(self.file.path)
        lines = difflib.unified_diff(
            old.splitlines(), self.after.decode().splitlines(), source, str(self.file.path), lineterm=""
        )
        return "\n".join(lines)


def plan_change(program: AgentProgram, file: ConfigFile, name: str, entry: ServerEntry) -> Plan:
    """Read a file and return the change that sets the entry; nothing is written."""
    before = file.read()
    try:
        text = "" if before is None else before.data.decode()
        return Plan(file, before, _edited(program, text, name, entry).encode())
    except ValueError as fault:
        raise error("agent_config_unreadable", path=str(file.path), reason=str(fault)) from fault


def _edited(program: AgentProgram, text: str, name: str, entry: ServerEntry) -> str:
    wanted = program.entry(entry)
    if program.format == "toml":
        return set_table(text, program.group, name, wanted)
    return set_entry(text, program.group, name, wanted, is_lenient=program.format == "jsonc")


Tool = Literal["claude-code", "codex", "cursor", "gemini-cli", "vscode", "copilot-cli"]
_SWITCH = Parameter(negative=(), show_default=False)


def connect(
    tool: Annotated[Tool, Parameter(help="The coding agent to configure.")],
    /,
    *,
    write: Annotated[bool, _SWITCH, Parameter(help="Apply the change; without it the change is only shown.")] = False,
    scope: Annotated[
        Literal["user", "project"] | None,
        Parameter(help="For all your projects, or for the project in this directory. Default: depends on the agent."),
    ] = None,
    file: Annotated[
        Path | None,
        Parameter(validator=PathValidator(dir_okay=False), help="Another configuration file of the same format."),
    ] = None,
    name: Annotated[str, Parameter(help="Name of the server entry.")] = "posthouse",
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Configure a coding agent to use posthouse. Shows the change; `--write` applies it.

    Other entries, comments and the file mode stay; the old file is kept beside the new one.

    For example:

        posthouse connect claude-code
        posthouse connect codex --write
        posthouse connect vscode --scope user --mesh team
    """
    from posthouse.cli.connect_agents import PROGRAMS
    from posthouse.cli.mcp import server_entry

    _check_name(name)
    program, entry = PROGRAMS[tool], server_entry(daemon_options)
    command = None if program.command is None else program.command(name, entry)
    plan = plan_change(program, _locate(tool, program, scope, file, command), name, entry)
    backup = _write(plan) if write and plan.is_change else None
    value = {
        "tool": tool,
        "file": plan.file.path,
        "entry": program.entry(entry),
        "diff": plan.diff,
        "changed": plan.is_change,
        "written": write and plan.is_change,
        "backup": backup,
        "command": command,
    }
    output.result(value, _summary(plan, program, is_written=write, backup=backup))
    if plan.is_change and not write:
        output.note("nothing was written: run again with --write" + (f", or use\n{command}" if command else ""))


def _locate(tool: str, program: AgentProgram, scope: Any, file: Path | None, command: str | None) -> ConfigFile:
    from posthouse.cli.connect_agents import user_home
    from posthouse.cli.connect_file import ConfigFile
    from posthouse.model.errors import error

    if file is not None:
        whole = file.expanduser().absolute()
        return ConfigFile(whole.parent, (whole.name,))
    locate = program.files.get(scope or program.default)
    if locate is None:
        hint = f"Run `{command}`." if command else f"Use --scope {program.default}."
        raise error("agent_scope_unsupported", tool=tool, scope=scope, hint=hint)
    return locate(user_home(), Path.cwd(), os.environ)


def _write(plan: Plan) -> Path | None:
    from posthouse.model.clock import format_utc, system_clock

    stamp = "".join(each for each in format_utc(system_clock().wall_ns()) if each.isalnum())
    return plan.file.replace(plan.before, plan.after, stamp)


def _summary(plan: Plan, program: AgentProgram, *, is_written: bool, backup: Path | None) -> str:
    if not plan.is_change:
        return f"{plan.file.path} already configures {program.title}"
    if not is_written:
        return plan.diff
    kept = "" if backup is None else f"; the old file is {backup}"
    return f"{plan.diff}\nwrote {plan.file.path}{kept}\nrestart {program.title} to use it"


def _check_name(name: str) -> None:
    import re

    from posthouse.model.errors import error

    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
        raise error("value_invalid", name="--name", reason="1 to 64 letters, digits, - and _")
