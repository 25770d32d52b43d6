"""`posthouse connect --status`: check what connect installed for a coding agent, and that it works.

The check runs the line of a hook as the program would, through a shell, so that a wrong PATH, a missing installation
and a daemon that is down are found before the agent misses its mail. It changes nothing.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from typing import Any

from posthouse.cli.connect_hooks import SHORT_S
from posthouse.cli.connect_plan import Request, plan_change, set_server
from posthouse.cli.doctor import Finding, fail, ok, warn
from posthouse.cli.output import Output, table
from posthouse.model.errors import PosthouseError


def show_status(request: Request, output: Output, *, wake: bool) -> int:
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
        return warn("server", f"{program.title} keeps it where only its own command looks", f"Run `{request.command}`.")
    try:
        plan = plan_change(request.server_file(), lambda text: set_server(program, text, name, entry))
    except PosthouseError as failure:
        return fail("server", str(failure), failure.hint)
    if plan.is_change:
        return fail("server", f"{plan.file.path} differs", f"Run `posthouse connect {request.tool} --write`.")
    return ok("server", str(plan.file.path))


def _check_hooks(request: Request) -> Finding:
    hooks, line = request.hooks, request.line()
    try:
        plan = plan_change(request.hooks_file(), lambda text: hooks.edit(text, line))
    except PosthouseError as failure:
        return fail("hooks", str(failure), failure.hint)
    if plan.is_change:
        again = f"Run `posthouse connect {request.tool} --wake --write`."
        return fail("hooks", f"{plan.file.path} differs", again)
    return ok("hooks", str(plan.file.path))


def _check_daemon(request: Request) -> list[Finding]:
    """Run a hook that changes nothing, and report what the daemon answers of this program's sessions."""
    line = request.line()("status")
    try:
        done = subprocess.run(["/bin/sh", "-c", line], input=b"{}", capture_output=True, timeout=SHORT_S)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return [fail("command", f"{line}: {failure}", "Check that this command runs in a shell.")]
    if done.returncode != 0:
        return [fail("command", f"{line}: exit code {done.returncode}", done.stderr.decode(errors="replace")[:200])]
    if not done.stdout:
        return [fail("daemon", "it does not answer hooks", "Start it with `posthouse daemon up`.")]
    sessions = json.loads(done.stdout)["sessions"]
    if not sessions:
        return [ok("daemon", "it answers hooks"), warn("sessions", "none has run a hook", request.hooks.note)]
    return [ok("daemon", "it answers hooks"), *(ok("session", _session(each)) for each in sessions)]


def _session(session: dict[str, Any]) -> str:
    waiting = "waits for mail" if session["is_waiting"] else "does not wait"
    return f"{session['agent']}, process {session['pid']}: {session['event']} at {session['at']}, {waiting}"
