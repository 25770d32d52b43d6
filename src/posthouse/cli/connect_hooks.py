"""The hooks of coding agents: which events each program offers, where it stores them, and the command they run.

The command line of a hook exits with 0 if posthouse is no longer installed, because Claude Code wakes its model again
and again for a hook that cannot start. It ends with `exec`, so that the process of the hook is a child of the program.
Other hooks of the same event stay; ours are recognized by their command.

If you add a program: 1. check events, fields and units against its documentation, and with the program itself if you
can; 2. add its answers to daemon.wake.programs; 3. add it to the table in docs/how-to/agent-hooks.md.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from posthouse.cli.connect_agents import Format, Locate, Scope, below_home, in_project
from posthouse.cli.connect_json import remove_items, set_item, set_member
from posthouse.cli.output import PLAIN, Output

SHORT_S = 5  # a hook ends within a second; a loaded machine may start it late
WAITER_S = 86_400
WAIT = "wait"
_GROUP = "hooks"
_OURS = re.compile(r"\bhook (?:claude-code|codex|gemini-cli|cursor) [a-z-]+\b")
#: returns the command line of the hook for an event of posthouse
Line = Callable[[str], str]


@dataclass(frozen=True)
class HookFile:
    """The hooks of one coding agent."""

    format: Format
    files: Mapping[Scope, Locate]
    #: event of the program -> function that returns our item for the event's array
    items: Mapping[str, Callable[[Line], dict[str, Any]]]
    #: fields that the file needs besides its hooks
    head: Mapping[str, Any]
    #: note for the user
    note: str

    def edit(self, text: str, line: Line) -> str:
        """Return the text with our hooks set."""
        is_lenient = self.format == "jsonc"
        for name, value in self.head.items():
            text = set_member(text, name, value, is_lenient=is_lenient)
        for event, item in self.items.items():
            text = set_item(text, _GROUP, event, is_ours, item(line), is_lenient=is_lenient)
        return text

    def remove(self, text: str) -> str:
        """Return the text without our hooks."""
        if not text.strip():
            return text
        for event in self.items:
            text = remove_items(text, _GROUP, event, is_ours, is_lenient=self.format == "jsonc")
        return text


def is_ours(item: Any) -> bool:
    """Return True if an item of a hook array runs posthouse."""
    return any(_OURS.search(command) for command in commands_of(item))


def commands_of(item: Any) -> list[str]:
    """Return the commands of an item: its own, and those in its `hooks` array if it is a group."""
    found = [item, *item.get("hooks", [])] if isinstance(item, dict) and isinstance(item.get("hooks", []), list) else []
    return [each["command"] for each in found if isinstance(each, dict) and isinstance(each.get("command"), str)]


def hook_line(program: str, words: tuple[str, ...], agent: str | None, directory: Path | None) -> Line:
    """Return a function that makes the command lines of a program's hooks; `words` is the command of posthouse."""
    path = shutil.which("posthouse")
    if path is not None and (path,) == words:
        words = ("posthouse",)
    options = [] if agent is None else ["--as", agent]
    options += [] if directory is None else ["--dir", str(directory)]

    def line(event: str) -> str:
        command = shlex.join([*words, "hook", program, event, *options])
        return f"command -v {shlex.quote(words[0])} >/dev/null || exit 0; exec {command}"

    return line


def _group(*events: str, matcher: str | None = None, unit_s: int = 1, **extra: Any) -> Callable[[Line], dict[str, Any]]:
    """Return a function that makes a group of commands; `unit_s` is the number of timeout units in a second."""

    def item(line: Line) -> dict[str, Any]:
        started = [{"type": "command", "command": line(event), **_limits(event, unit_s), **extra} for event in events]
        return {"hooks": started} if matcher is None else {"matcher": matcher, "hooks": started}

    return item


def _limits(event: str, unit_s: int) -> dict[str, Any]:
    if event == WAIT:
        return {"asyncRewake": True, "timeout": WAITER_S}
    return {"timeout": SHORT_S * unit_s}


def _command(event: str) -> Callable[[Line], dict[str, Any]]:
    return lambda line: {"command": line(event), "timeout": SHORT_S}


_MS = 1_000
HOOKS: dict[str, HookFile] = {
    "claude-code": HookFile(
        "json",
        {
            "user": below_home(".claude", "settings.json", variable="CLAUDE_CONFIG_DIR"),
            "project": in_project(".claude", "settings.local.json"),
        },
        {
            "SessionStart": _group("session-start", WAIT),
            "UserPromptSubmit": _group("prompt"),
            "PostToolUse": _group("tool", matcher="*"),
            "Stop": _group(WAIT),
            "StopFailure": _group("turn-failed", WAIT),
            "SessionEnd": _group("session-end"),
        },
        {},
        "An idle session is woken by new mail. Messages that Claude Code sessions send each other directly do not "
        "pass through posthouse and are not in its history.",
    ),
    "codex": HookFile(
        "json",
        {
            "user": below_home(".codex", "hooks.json", variable="CODEX_HOME"),
            "project": in_project(".codex", "hooks.json"),
        },
        {
            "SessionStart": _group("session-start"),
            "UserPromptSubmit": _group("prompt"),
            "PostToolUse": _group("tool"),
            "Stop": _group("turn-end"),
        },
        {},
        "Codex runs new or changed hooks only after you trust them: start `codex` and accept them when it asks. "
        "`codex exec` does not ask and does not run them.",
    ),
    "gemini-cli": HookFile(
        "jsonc",
        {"user": below_home(".gemini", "settings.json"), "project": in_project(".gemini", "settings.json")},
        {
            "SessionStart": _group("session-start", unit_s=_MS, name="posthouse-session-start"),
            "BeforeAgent": _group("prompt", unit_s=_MS, name="posthouse-prompt"),
            "AfterTool": _group("tool", unit_s=_MS, name="posthouse-tool"),
            "SessionEnd": _group("session-end", unit_s=_MS, name="posthouse-session-end"),
        },
        {},
        "Gemini CLI announces mail at your next prompt and after each tool; nothing wakes an idle session.",
    ),
    "cursor": HookFile(
        "json",
        {"user": below_home(".cursor", "hooks.json"), "project": in_project(".cursor", "hooks.json")},
        {
            "sessionStart": _command("session-start"),
            "stop": _command("turn-end"),
            "sessionEnd": _command("session-end"),
        },
        {"version": 1},
        "Cursor announces mail when a turn ends; nothing wakes an idle session.",
    ),
}

#: the hook of `posthouse guard`: it may refuse an edit, so a separate command installs it
GUARD = HookFile(
    "json",
    HOOKS["claude-code"].files,
    {"PreToolUse": _group("guard", matcher="Edit|MultiEdit|Write|NotebookEdit")},
    {},
    "",
)


def hook(
    program: Annotated[str, Parameter(help="The coding agent that runs the hook, such as claude-code.")],
    event: Annotated[str, Parameter(help="session-start, prompt, tool, turn-end, turn-failed, session-end or wait.")],
    /,
    *,
    as_: Annotated[
        str | None,
        Parameter(name="--as", help="Name of the agent. Default: POSTHOUSE_AGENT, else the name of the program."),
    ] = None,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Directory of the daemon. Default: ~/.posthouse/daemon.")
    ] = None,
    output: Output = PLAIN,
) -> int:
    """Report an event of a coding agent's session, and print how much mail waits for the agent.

    `posthouse connect PROGRAM --wake` installs this command as a hook of the program. It reads the program's JSON on
    stdin, passes it to the daemon, and answers in the program's format. It ends with exit code 0; if no daemon runs, it
    prints nothing.

    For example:

        posthouse hook claude-code prompt < input.json
        posthouse hook claude-code wait
    """
    from posthouse.cli.hook import run

    words = [program, event]
    words += [] if as_ is None else ["--as", as_]
    words += [] if directory is None else ["--dir", str(directory)]
    code = run(words)
    return code if isinstance(code, int) else 0
