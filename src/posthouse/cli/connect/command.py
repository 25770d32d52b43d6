"""`posthouse connect`: show what an agent's program has to be told, and write it if asked to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Path as PathValidator

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near

if TYPE_CHECKING:
    from posthouse.cli.connect.agents import AgentProgram
    from posthouse.cli.connect.config_file import ConfigFile
    from posthouse.cli.connect.plan import Plan

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
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Tell an agent's program of `posthouse mcp`: show the change to its configuration, and with --write make it.

    Other entries, comments and the mode of the file stay; the old file is kept beside the new one.

    For example:

        posthouse connect claude-code
        posthouse connect codex --write
        posthouse connect vscode --scope user --mesh team
    """
    from posthouse.cli.connect.agents import PROGRAMS
    from posthouse.cli.connect.entry import server_entry
    from posthouse.cli.connect.plan import plan_change

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
    from posthouse.cli.connect.agents import user_home
    from posthouse.cli.connect.config_file import ConfigFile
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
    from posthouse.model.clock import system_clock
    from posthouse.model.timestamps import format_utc

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
