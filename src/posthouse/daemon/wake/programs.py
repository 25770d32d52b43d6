"""Input and answers of coding agents' hooks: the fields of the input, the text of an announcement, each program's
format.

Pure. An announcement names the agent, the number of waiting messages, and their senders. It never has the text of a
message, so that a stranger's words reach a model only when the agent reads its mail. Names of senders and topics are
shortened and stripped of control characters, because other hosts choose them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

#: program -> name of its agent
PROGRAMS = {"claude-code": "claude", "codex": "codex", "gemini-cli": "gemini", "cursor": "cursor"}
SESSION_START, PROMPT, TOOL, TURN_END, SESSION_END = "session-start", "prompt", "tool", "turn-end", "session-end"
TURN_FAILED = "turn-failed"
WAIT, STATUS, GUARD = "wait", "status", "guard"
EVENTS = frozenset({SESSION_START, PROMPT, TOOL, TURN_END, TURN_FAILED, SESSION_END, WAIT, STATUS, GUARD})
#: exit code with which a waiter of Claude Code wakes the model
WAKE_EXIT = 2
_NAME_MAX_CHARS = 64
_SENDERS_SHOWN = 5


class HookInput(msgspec.Struct):
    """The fields of a hook's input that posthouse uses; every program sends more.

    A field typed Any has the meaning used here only for some events or programs.
    """

    session_id: str = ""
    #: Cursor's word for the session
    conversation_id: str = ""
    #: set by Claude Code if a subagent runs the hook
    agent_id: str | None = None
    hook_event_name: str = ""
    cwd: str | None = None
    permission_mode: Any = None
    #: the file to which Claude Code writes the session
    transcript_path: Any = None
    tool_input: Any = None
    #: of a failed turn: its kind, and the program's message to its user
    error: Any = None
    error_details: Any = None
    last_assistant_message: Any = None

    @property
    def file(self) -> str | None:
        """The file that a tool is about to write, as an absolute path."""
        given = self.tool_input if isinstance(self.tool_input, dict) else {}
        found = given.get("file_path") or given.get("notebook_path")
        if not isinstance(found, str):
            return None
        return found if self.cwd is None else posixpath.join(self.cwd, found)

    @property
    def session(self) -> str:
        """The id of the session."""
        return self.session_id or self.conversation_id


class Waiting(NamedTuple):
    """Unread messages of one sender, in one topic or direct."""

    sender: str
    topic: str | None
    messages: int


@dataclass(frozen=True)
class HookAnswer:
    """The output of the hook, and its exit code; with a code other than 0 the text goes to stderr."""

    body: bytes = b""
    exit: int = 0
    #: the agent's name, if the program is to pass it on to the commands that it starts
    agent: str | None = None


def announcement(waiting: Sequence[Waiting], *, is_new: bool = True) -> str:
    """Return the sentence about messages that wait; empty if none does."""
    total = sum(each.messages for each in waiting)
    if not total:
        return ""
    kind = "new " if is_new else ""
    many = f"1 {kind}message waits" if total == 1 else f"{total} {kind}messages wait"
    shown = ", ".join(_sender(each) for each in waiting[:_SENDERS_SHOWN])
    left = sum(each.messages for each in waiting[_SENDERS_SHOWN:])
    rest = f", {left} from others" if left else ""
    return f"posthouse: {many}: {shown}{rest}. Read with the posthouse tool `inbox` or `posthouse inbox`."


def introduction(address: str, waiting: Sequence[Waiting]) -> str:
    """Return the agent's address and a summary of the mail that waits for it."""
    known = f"posthouse: you are {address}; other agents send you mail at this address."
    return f"{known} {announcement(waiting, is_new=False)}".rstrip()


def context_answer(program: str, given: HookInput, text: str, agent: str | None = None) -> HookAnswer:
    """Return the answer that adds text to the context of the model; without text the answer is empty."""
    if not text:
        return HookAnswer(agent=agent)
    value: dict[str, Any]
    if program == "cursor":
        value = {"additional_context": text}
    else:
        value = {"hookSpecificOutput": {"hookEventName": given.hook_event_name, "additionalContext": text}}
    return HookAnswer(msgspec.json.encode(value), agent=agent)


def follow_up_answer(program: str, text: str) -> HookAnswer:
    """Return the answer to the end of a turn that makes the program begin another; only Cursor has one."""
    if program != "cursor" or not text:
        return HookAnswer()
    return HookAnswer(msgspec.json.encode({"followup_message": text}))


def deny_answer(given: HookInput, reason: str) -> HookAnswer:
    """Return the answer that keeps Claude Code from using a tool; the model reads the reason."""
    decision = {
        "hookEventName": given.hook_event_name or "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": reason,
    }
    return HookAnswer(msgspec.json.encode({"hookSpecificOutput": decision}))


def wake_answer(text: str) -> HookAnswer:
    """Return the answer with which a waiter wakes its program."""
    return HookAnswer(text.encode(), WAKE_EXIT)


def clean_name(text: str) -> str:
    """Return a name that another host chose, safe to show to a model."""
    return "".join(character for character in text if character.isprintable())[:_NAME_MAX_CHARS]


def _sender(waiting: Waiting) -> str:
    where = "" if waiting.topic is None else f" in #{clean_name(waiting.topic)}"
    return f"{waiting.messages} from {clean_name(waiting.sender)}{where}"
