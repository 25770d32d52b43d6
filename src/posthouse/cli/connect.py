"""`posthouse connect`: configure a coding agent to use posthouse. Shows the change; `--write` applies it.

A change is planned from the file as it is, shown as a diff, and written only if the file has not changed since. TOML
is edited as text: other tables and comments stay, and a layout that cannot be changed safely is refused.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
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

_HEADER = re.compile(r"\s*\[")


def set_table(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    """Return the text with the table [group.name] holding `wanted`; its other keys stay.

    Raises ValueError when the text is no TOML, or cannot be changed so.
    """
    before = tomllib.loads(text)
    meant = copy.deepcopy(before)
    table = meant.setdefault(group, {}).setdefault(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{group}.{name} is no table")
    differing = {key: value for key, value in wanted.items() if table.get(key) != value}
    if not differing:
        return text
    table.update(differing)
    is_new = name not in before.get(group, {})
    changed = _append(text, group, name, wanted) if is_new else _replace(text, group, name, differing)
    try:
        is_meant = tomllib.loads(changed) == meant
    except tomllib.TOMLDecodeError:
        is_meant = False
    if not is_meant:
        raise ValueError(f"{group}.{name} stands there in a way that cannot be changed safely")
    return changed


def _append(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"[{group}.{name}]", *(_assignment(key, value) for key, value in wanted.items())]
    gap = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
    return text + gap + newline.join(lines) + newline


def _replace(text: str, group: str, name: str, differing: Mapping[str, Any]) -> str:
    lines = text.splitlines(keepends=True)
    start = _header(lines, group, name)
    for key, value in differing.items():
        first, end = _assigned(lines, start + 1, key)
        newline = "\r\n" if lines[start].endswith("\r\n") else "\n"
        lines[first:end] = [_assignment(key, value) + newline]
    return "".join(lines)


def _header(lines: Sequence[str], group: str, name: str) -> int:
    wanted = re.compile(rf"\s*\[\s*{re.escape(group)}\s*\.\s*\"?{re.escape(name)}\"?\s*\]\s*(#.*)?$")
    found = [number for number, line in enumerate(lines) if wanted.match(line)]
    if len(found) != 1:
        raise ValueError(f"the header of [{group}.{name}] cannot be found")
    return found[0]


def _assigned(lines: Sequence[str], start: int, key: str) -> tuple[int, int]:
    """Return the lines of an assignment, or an empty range at the table's beginning when it is absent."""
    wanted = re.compile(rf"\s*\"?{re.escape(key)}\"?\s*=")
    for first in range(start, len(lines)):
        if _HEADER.match(lines[first]):
            break
        if wanted.match(lines[first]):
            return first, _end(lines, first)
    return start, start


def _end(lines: Sequence[str], first: int) -> int:
    for end in range(first + 1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[first:end]))
        except tomllib.TOMLDecodeError:
            continue
        return end
    raise ValueError("an assignment has no end")


def _assignment(key: str, value: Any) -> str:
    return f"{key} = {_toml_value(value)}"


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(each) for each in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_toml_value(each)}" for name, each in value.items()) + " }"
    raise TypeError(f"{type(value).__name__} is not written here")


@dataclass(frozen=True)
class Plan:
    """A change that was not made yet."""

    file: ConfigFile
    before: Content | None
    after: bytes

    @property
    def is_change(self) -> bool:
        return self.before is None or self.before.data != self.after

    @property
    def diff(self) -> str:
        """The change as a patch; nothing when there is none."""
        old = "" if self.before is None else self.before.data.decode()
        source = "/dev/null" if self.before is None else str(self.file.path)
        lines = difflib.unified_diff(
            old.splitlines(), self.after.decode().splitlines(), source, str(self.file.path), lineterm=""
        )
        return "\n".join(lines)


def plan_change(program: AgentProgram, file: ConfigFile, name: str, entry: ServerEntry) -> Plan:
    """Read a file and work out what it should be; nothing is written."""
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
    tool: Annotated[Tool, Parameter(help="The agent's program.")],
    /,
    *,
    write: Annotated[bool, _SWITCH, Parameter(help="Change the file; without it the change is only shown.")] = False,
    scope: Annotated[
        Literal["user", "project"] | None,
        Parameter(
            help="For all your projects, or for the one in this directory; without it what the program is used to."
        ),
    ] = None,
    file: Annotated[
        Path | None, Parameter(validator=PathValidator(dir_okay=False), help="Another file of the same form.")
    ] = None,
    name: Annotated[str, Parameter(help="What the server is called there.")] = "posthouse",
    near: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Tell an agent's program of `posthouse mcp`: show the change to its configuration, and with --write make it.

    Other entries, comments and the mode of the file stay; the old file is kept beside the new one.

    For example:

        posthouse connect claude-code
        posthouse connect codex --write
        posthouse connect vscode --scope user --mesh team
    """
    from posthouse.cli.connect_agents import PROGRAMS
    from posthouse.cli.mcp import server_entry

    _check_name(name)
    program, entry = PROGRAMS[tool], server_entry(near)
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
    output.answer(value, _shown(plan, program, is_written=write, backup=backup))
    if plan.is_change and not write:
        output.note("nothing was written: run it again with --write" + (f", or use\n{command}" if command else ""))


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


def _shown(plan: Plan, program: AgentProgram, *, is_written: bool, backup: Path | None) -> str:
    if not plan.is_change:
        return f"{plan.file.path} tells {program.title} of it already"
    if not is_written:
        return plan.diff
    kept = "" if backup is None else f"; the old file is {backup}"
    return f"{plan.diff}\nwrote {plan.file.path}{kept}\nstart {program.title} anew to use it"


def _check_name(name: str) -> None:
    import re

    from posthouse.model.errors import error

    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
        raise error("value_invalid", name="--name", reason="1 to 64 letters, digits, - and _")
