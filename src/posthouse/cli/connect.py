"""`posthouse connect`: configure a coding agent to use posthouse. Shows the change; `--write` applies it.

The change is shown as a diff before it is written. Other entries and comments stay, and a layout that cannot be changed
safely is refused. `--wake` also installs the hooks that announce mail to the agent; `--remove` removes what connect
added; `--status` runs the command line of a hook as the program would, so that a wrong PATH, a missing installation or
a stopped daemon is found before the agent misses its mail.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Path as PathValidator

from posthouse.cli.connect_agents import AgentProgram, Scope
from posthouse.cli.connect_hooks import HOOKS, SHORT_S
from posthouse.cli.connect_plan import FileEdit, Plan, Request, plan_change, plan_files, remove_server, set_server
from posthouse.cli.doctor import Finding, fail, ok, warn
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import PosthouseError, error

Tool = Literal["claude-code", "codex", "cursor", "gemini-cli", "vscode", "copilot-cli"]
_SWITCH = Parameter(negative=(), show_default=False)


def connect(
    tool: Annotated[Tool, Parameter(help="The coding agent to configure.")],
    /,
    *,
    write: Annotated[bool, _SWITCH, Parameter(help="Apply the change; without it the change is only shown.")] = False,
    wake: Annotated[
        bool, _SWITCH, Parameter(help="Also install hooks that announce mail and, where possible, wake the agent.")
    ] = False,
    remove: Annotated[
        bool, _SWITCH, Parameter(help="Remove the hooks and, without --wake, the server entry as well.")
    ] = False,
    status: Annotated[bool, _SWITCH, Parameter(help="Check what is installed, and that it works.")] = False,
    as_: Annotated[
        str | None, Parameter(name="--as", help="Name of the agent. Default: the program's, such as claude.")
    ] = None,
    scope: Annotated[
        Scope | None,
        Parameter(help="For all your projects, or for the project in this directory. Default: depends on the agent."),
    ] = None,
    file: Annotated[
        Path | None,
        Parameter(validator=PathValidator(dir_okay=False), help="Another configuration file of the same format."),
    ] = None,
    name: Annotated[str, Parameter(help="Name of the server entry.")] = "posthouse",
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> int:
    """Configure a coding agent to use posthouse. Shows the change; `--write` applies it.

    Other entries, comments and the file mode stay; the old file is kept beside the new one.

    For example:

        posthouse connect claude-code
        posthouse connect claude-code --as reviewer --wake --write
        posthouse connect claude-code --wake --status
        posthouse connect codex --remove
        posthouse connect vscode --scope user --mesh team
    """
    _check_arguments(name, as_, file, is_single=sum((write, remove, status)) <= 1, wake=wake)
    request = Request(tool, scope, file, name, as_, daemon_options)
    if status:
        return _show_status(request, output, wake=wake)
    plans = _removals(request, wake=wake) if remove else _additions(request, wake=wake)
    _carry_out(request, plans, output, is_written=write or remove, is_removal=remove)
    if write:
        _add_agent(request, output)
    if wake and not remove:
        output.note(request.hooks.note)
        if not request.has_server_file():
            output.note(f"the agent needs the MCP server to read its mail; this command adds it:\n{request.command}")
    return 0


def _additions(request: Request, *, wake: bool) -> list[Plan]:
    edits: list[FileEdit] = []
    if request.has_server_file() or not wake:
        program, name, entry = request.program, request.name, request.entry
        edits.append((request.server_file(), lambda text: set_server(program, text, name, entry)))
    if wake:
        hooks, line = request.hooks, request.line()
        edits.append((request.hooks_file(), lambda text: hooks.edit(text, line)))
    return plan_files(edits)


def _removals(request: Request, *, wake: bool) -> list[Plan]:
    edits: list[FileEdit] = []
    if not wake:
        program, name = request.program, request.name
        edits.append((request.server_file(), lambda text: remove_server(program, text, name)))
    if wake or request.tool in HOOKS:
        edits.append((request.hooks_file(), request.hooks.remove))
    return plan_files(edits)


def _carry_out(request: Request, plans: Sequence[Plan], output: Output, *, is_written: bool, is_removal: bool) -> None:
    """Show the changes, and apply them if asked to."""
    files: list[dict[str, Any]] = []
    shown: list[str] = []
    for plan in plans:
        backup = plan.apply() if is_written and plan.is_change else None
        files.append(
            {
                "file": plan.file.path,
                "diff": plan.diff,
                "changed": plan.is_change,
                "written": is_written and plan.is_change,
                "backup": backup,
            }
        )
        shown.append(_summary(plan, request.program, is_written=is_written, backup=backup, is_removal=is_removal))
    entry = request.program.entry(request.entry)
    output.result(
        {"tool": request.tool, **files[0], "entry": entry, "command": request.command, "files": files},
        "\n".join(shown),
    )
    if not is_written and any(plan.is_change for plan in plans):
        either = f", or use\n{request.command}" if request.command else ""
        output.note("nothing was written: run again with --write" + either)


def _add_agent(request: Request, output: Output) -> None:
    """Add the agent to a running daemon, so that mail can be sent to it before its first session."""
    from posthouse.mcp.server import name_of_program

    name = request.agent or name_of_program(request.tool)
    try:
        with request.daemon_options.client() as daemon:
            if all(agent.name != name for agent in daemon.agents()):
                daemon.register(name, program=request.tool)
    except PosthouseError as failure:
        if failure.code != "daemon_unreachable":
            raise
        output.note(f"no daemon runs; after `posthouse up` and its first session, others reach the agent as {name}")
    else:
        output.note(f"others reach the agent as {name}: posthouse send {name} 'hello'")


def _summary(plan: Plan, program: AgentProgram, *, is_written: bool, backup: Path | None, is_removal: bool) -> str:
    if not plan.is_change:
        state = "has no entries of posthouse" if is_removal else f"already configures {program.title}"
        return f"{plan.file.path} {state}"
    if not is_written:
        return plan.diff
    kept = "" if backup is None else f"; the old file is {backup}"
    return f"{plan.diff}\nwrote {plan.file.path}{kept}\nrestart {program.title} to apply it"


def _check_arguments(name: str, agent: str | None, file: Path | None, *, is_single: bool, wake: bool) -> None:
    import re

    from posthouse.model.address import validate_agent_name

    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
        raise error("value_invalid", name="--name", reason="1 to 64 letters, digits, - and _")
    if agent is not None:
        validate_agent_name(agent)
    if not is_single:
        raise error("usage", text="--write, --remove and --status cannot be combined")
    if wake and file is not None:
        raise error("usage", text="--file names the file of the server entry; it cannot be used with --wake")


def _show_status(request: Request, output: Output, *, wake: bool) -> int:
    """Print one line per check; return 1 if one fails."""
    findings = [_check_server(request)]
    if wake:
        findings += [_check_hooks(request), *_check_daemon(request)]
    output.result(
        {"tool": request.tool, "checks": [asdict(each) for each in findings]},
        table(("state", "check", "finding"), [(each.state, each.name, each.text) for each in findings]),
    )
    for each in findings:
        if each.hint:
            output.note(f"{each.name}: {each.hint}")
    return int(any(each.state == "fail" for each in findings))


def _check_server(request: Request) -> Finding:
    program, name, entry = request.program, request.name, request.entry
    if not request.has_server_file():
        return warn("server", f"{program.title} keeps the entry itself: not checked", f"Run `{request.command}`.")
    try:
        plan = plan_change(request.server_file(), lambda text: set_server(program, text, name, entry))
    except PosthouseError as failure:
        return fail("server", str(failure), failure.hint)
    if plan.is_change:
        return fail("server", plan.finding, f"Run `posthouse connect {request.tool} --write`.")
    return ok("server", str(plan.file.path))


def _check_hooks(request: Request) -> Finding:
    hooks, line = request.hooks, request.line()
    try:
        plan = plan_change(request.hooks_file(), lambda text: hooks.edit(text, line))
    except PosthouseError as failure:
        return fail("hooks", str(failure), failure.hint)
    if plan.is_change:
        again = f"Run `posthouse connect {request.tool} --wake --write`."
        return fail("hooks", plan.finding, again)
    return ok("hooks", str(plan.file.path))


def _check_daemon(request: Request) -> list[Finding]:
    """Run a hook that changes nothing, and report the sessions of this program that the daemon knows."""
    line = request.line()("status")
    try:
        done = subprocess.run(["/bin/sh", "-c", line], input=b"{}", capture_output=True, timeout=SHORT_S)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return [fail("command", f"{line}: {failure}", "Check that this command runs in a shell.")]
    if done.returncode != 0:
        return [fail("command", f"{line}: exit code {done.returncode}", done.stderr.decode(errors="replace")[:200])]
    if not done.stdout:
        return [fail("daemon", "it does not answer hooks", "Start it with `posthouse up`.")]
    sessions = json.loads(done.stdout)["sessions"]
    if not sessions:
        return [ok("daemon", "it answers hooks"), warn("sessions", "none has run a hook", request.hooks.note)]
    return [ok("daemon", "it answers hooks"), *(ok("session", _session(each)) for each in sessions)]


def _session(session: dict[str, Any]) -> str:
    inbox = "has no waiter, but an inbox that can wake it" if session.get("has_inbox") else "does not wait"
    waiting = "waits for mail" if session["is_waiting"] else inbox
    return f"{session['agent']}, process {session['pid']}: {session['event']} at {session['at']}, {waiting}"
