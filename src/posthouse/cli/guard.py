"""`posthouse guard`: keep agents off files that other agents have reserved.

Two guards ask the daemon before a write: a PreToolUse hook of Claude Code before it edits a file, and a git pre-commit
hook before a commit. Without a daemon or a repository both allow the write, with one line of output; if the check
fails they refuse it. A person (no POSTHOUSE_AGENT) is warned and never stopped. Files that a shell writes are only
checked at the commit.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.cli.commands import noun
from posthouse.cli.connect_agents import user_home
from posthouse.cli.connect_hooks import GUARD, hook_line
from posthouse.cli.connect_plan import Plan, hook_directory, plan_change
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, one_line
from posthouse.cli.service_units import program
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client.daemon import Reservation

OFF = "POSTHOUSE_GUARD"
_OFF_HINT = f"Set {OFF}=off to switch the guard off."
_NOT_SEEN = "Files that a shell writes are checked only when they are committed."
_HOOK_NAME = "pre-commit"
_CHAINED = "pre-commit.posthouse-chained"
_MARK = "# posthouse guard: asks whether another agent has reserved a staged file"
_SCRIPT = """\
#!/bin/sh
{mark}
command -v {command} >/dev/null || {{ echo "posthouse guard: posthouse not found; nothing checked" >&2; {rest}; }}
{check} || exit $?
{rest}
"""
_REST = f'next="$(dirname "$0")/{_CHAINED}"; if [ -x "$next" ]; then exec "$next" "$@"; else exit 0; fi'


def install(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Install the guard for Claude Code, and inside a git repository as its pre-commit hook.

    An existing pre-commit hook runs after the check. Agents in other programs are only checked when they commit.

    For example:

        posthouse guard install
    """
    changed = [_apply(_claude_plan(daemon_options, is_removed=False))]
    top = _repository()
    if top is not None:
        changed.append(_install_git(_hooks_directory(top), daemon_options))
    output.result({"changed": [each for each in changed if each]}, "\n".join(filter(None, changed)) or "no change")
    if top is None:
        output.note("this directory is not in a git repository: only Claude Code is guarded")
    output.note(_NOT_SEEN)


def remove(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Remove the guard from Claude Code and from the git repository of this directory.

    For example:

        posthouse guard remove
    """
    changed = [_apply(_claude_plan(daemon_options, is_removed=True))]
    top = _repository()
    if top is not None:
        changed.append(_remove_git(_hooks_directory(top)))
    output.result({"changed": [each for each in changed if each]}, "\n".join(filter(None, changed)) or "no change")


def check(*paths: Path, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> int:
    """Check that no other agent has reserved these files, by default those staged for a commit; exit code 1 if so.

    For example:

        posthouse guard check
        posthouse guard check src/api/routes.py
    """
    if os.environ.get(OFF) == "off":
        return Exit.OK
    wanted = list(paths) or _staged()
    if wanted is None:
        output.note("posthouse guard: this is not a git repository; nothing was checked")
        return Exit.OK
    try:
        with daemon_options.client() as daemon:
            held = [found for path in wanted for found in daemon.reservations(str(path.absolute()))]
    except PosthouseError as failure:
        if failure.code == "daemon_unreachable":
            output.note("posthouse guard: no daemon runs; nothing was checked")
            return Exit.OK
        raise error("guard_failed", reason=str(failure), hint=_OFF_HINT) from failure
    for each in dict.fromkeys(held):
        output.result({"path": each.path, "agent": each.agent, "left_s": each.left_s, "note": each.note}, _shown(each))
    if held and not os.environ.get("POSTHOUSE_AGENT"):
        output.note("posthouse guard: you are not an agent, so this is only a warning")
        return Exit.OK
    return Exit.REFUSED if held else Exit.OK


def _shown(held: Reservation) -> str:
    holder = held.agent or "a person"
    note = f": {one_line(held.note)}" if held.note else ""
    return f"posthouse guard: {holder} has reserved {held.path} for {held.left_s} s more{note}"


def _claude_plan(daemon_options: DaemonOptions, *, is_removed: bool) -> Plan:
    file = GUARD.files["user"](user_home(), Path.cwd(), os.environ)
    line = hook_line("claude-code", program(), None, hook_directory(daemon_options))
    return plan_change(file, GUARD.remove if is_removed else lambda text: GUARD.edit(text, line))


def _apply(plan: Plan) -> str:
    if not plan.is_change:
        return ""
    plan.apply()
    return f"wrote {plan.file.path}"


def _repository() -> Path | None:
    found = _git("rev-parse", "--show-toplevel")
    return None if found is None else Path(found)


def _hooks_directory(top: Path) -> Path:
    """Return the directory in which git looks for hooks; core.hooksPath may change it."""
    found = _git("rev-parse", "--git-path", "hooks", folder=top)
    return (top / str(found)).resolve()


def _staged() -> list[Path] | None:
    """Return the files that a commit would change, old names included; None outside of a repository."""
    top = _repository()
    if top is None:
        return None
    listed = _git("diff", "--cached", "--name-only", "--no-renames", "-z", folder=top)
    if listed is None:
        raise error("guard_failed", reason="git does not list the staged files", hint=_OFF_HINT)
    return [top / name for name in listed.split("\0") if name]


def _git(*words: str, folder: Path | None = None) -> str | None:
    try:
        ended = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    except (subprocess.CalledProcessError, OSError):
        return None
    return ended.stdout.strip("\n")


def _install_git(hooks: Path, daemon_options: DaemonOptions) -> str:
    from posthouse.files import write_atomic

    hook, chained = hooks / _HOOK_NAME, hooks / _CHAINED
    words = [*program(), "guard", "check"]
    directory = hook_directory(daemon_options)
    if directory is not None:
        words += ["--dir", str(directory)]
    script = _SCRIPT.format(mark=_MARK, command=shlex.quote(words[0]), check=shlex.join(words), rest=_REST)
    if hook.exists() and _MARK not in hook.read_text(errors="replace"):
        if chained.exists():
            raise error("guard_failed", reason=f"{chained} already exists", hint="Move it away and try again.")
        hook.rename(chained)
    elif hook.exists() and hook.read_text() == script:
        return ""
    hooks.mkdir(parents=True, exist_ok=True)
    write_atomic(hook, script.encode(), mode=0o755)
    return f"wrote {hook}" + (f"; it runs {chained.name} afterwards" if chained.exists() else "")


def _remove_git(hooks: Path) -> str:
    hook, chained = hooks / _HOOK_NAME, hooks / _CHAINED
    if not hook.exists() or _MARK not in hook.read_text(errors="replace"):
        return ""
    hook.unlink()
    if chained.exists():
        chained.rename(hook)
    return f"removed the check from {hook}"


app = noun("guard", "Keep agents off files that other agents have reserved.")
app.command(install, name="install")
app.command(remove, name="remove")
app.command(check, name="check")
