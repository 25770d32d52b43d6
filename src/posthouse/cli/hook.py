"""The fast path of `posthouse hook PROGRAM EVENT`, which a coding agent runs at the events of its session.

The hook passes its input to the daemon and prints the answer; the daemon writes the program's JSON. An answer never has
the text of a message. A hook must never disturb the program: within one second it ends with exit code 0, silently if
the daemon is down. Only `wait` runs longer, until the daemon answers or the program has ended; and only `guard` may
refuse an edit, if the daemon says so or the check fails. This module loads nothing heavier than `socket`: a program
runs it after every tool call.
"""

from __future__ import annotations

import os
import select
import sys
import time

from posthouse.client.daemon.bare_http import WATCH_S, Answer, connect, default_directory, exchange

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOTAL_S = 1.0
GUARD_S = 4.0  # an edit waits this long, then it is refused; the program waits a second longer
BLOCKED = 2  # exit code with which a hook of Claude Code refuses a tool
INPUT_MAX_BYTES = 65_536
_INPUT_READ_BYTES = 1 << 26  # a tool's result can be large; longer input is ignored altogether
_FIELD_MAX_CHARS = 4_096
_NO_INPUT = b"{}"
_PARENT = os.getppid()  # the coding agent: the command line of a hook ends with `exec`


def run(words: Sequence[str]) -> int | Sequence[str]:
    """Run one hook and return its exit code, or return the words if they are not a program, an event and options."""
    if len(words) < 2 or not {"--help", "-h", "--json", "--debug"}.isdisjoint(words):
        return words
    program, event, *rest = words
    try:
        options = _options(rest)
        target = _target(program, event, options)
        directory = options.get("--dir") or default_directory()
        if event == "wait":
            return _wait(program, directory, target)
        if event == "guard":
            return _guard(directory, target)
        deadline = time.monotonic() + TOTAL_S
        return _finish(_ask(directory, target, read_input(deadline), deadline))
    except (OSError, ValueError, RecursionError):
        return 0


def read_input(deadline: float) -> bytes:
    """Return the JSON on stdin; large input is reduced to its short fields."""
    if sys.stdin is None or os.isatty(0):
        return _NO_INPUT
    data = bytearray()
    while len(data) < _INPUT_READ_BYTES and select.select([0], [], [], _left(deadline))[0]:
        chunk = os.read(0, 1 << 20)
        if not chunk:
            break
        data += chunk
    return bytes(data) if len(data) <= INPUT_MAX_BYTES else _shortened(data)


def is_program_running() -> bool:
    """Return False once the process that started this hook has ended."""
    return os.getppid() == _PARENT


def _ask(directory: str, target: str, body: bytes, deadline: float) -> Answer:
    """Ask the daemon; with an infinite deadline the wait for the answer ends when the program is gone."""
    with connect(directory) as connection:
        return exchange(connection, f"POST {target}", _inbox_headers(), body, deadline, is_program_running)


def _inbox_headers() -> dict[str, str]:
    """Return headers with the inbox socket of an interactive Claude Code session, used if it has no waiter."""
    if os.environ.get("CLAUDE_CODE_ENTRYPOINT") != "cli":
        return {}
    given = (os.environ.get(f"CLAUDE_CODE_MESSAGING_{name}", "") for name in ("SOCKET", "TOKEN"))
    named = zip(("Posthouse-Inbox", "Posthouse-Inbox-Token"), given, strict=True)
    return {name: value for name, value in named if value.isascii() and value.isprintable() and value}


def _finish(answer: Answer) -> int:
    """Print the daemon's answer; return its exit code."""
    if answer.status != 200:
        return 0
    code = int(answer.headers.get("posthouse-exit", "0"))
    _keep_name(answer.headers.get("posthouse-agent"))
    os.write(1 if code == 0 else 2, answer.body)
    return code


def _keep_name(agent: str | None) -> None:
    """Make the commands that Claude Code starts in this session act as the agent."""
    path = os.environ.get("CLAUDE_ENV_FILE")
    if agent and path:
        with open(path, "a") as file:  # noqa: PTH123 - pathlib is slow to load
            file.write(f"export POSTHOUSE_AGENT={agent}\n")


def _wait(program: str, directory: str, target: str) -> int:
    """Wait for the daemon's answer, even across restarts, while the program that started this waiter runs."""
    if program == "claude-code" and os.environ.get("CLAUDE_CODE_ENTRYPOINT") != "cli":
        return 0  # `claude -p` and the SDK would wait for this process to end
    data = read_input(time.monotonic() + TOTAL_S)
    while is_program_running():
        try:
            answer = _ask(directory, target, data, float("inf"))
        except (OSError, ValueError):
            answer = None
        if answer is not None and answer.status < 500:
            return _finish(answer)
        time.sleep(WATCH_S)
    return 0


def _guard(directory: str, target: str) -> int:
    """Ask the daemon whether the program may write a file: yes if no daemon runs, no if the check fails."""
    if os.environ.get("POSTHOUSE_GUARD") == "off":
        return 0
    deadline = time.monotonic() + GUARD_S
    data = read_input(deadline)
    try:
        answer = _ask(directory, target, data, deadline)
        reason = f"the daemon answered {answer.status}"
    except (FileNotFoundError, ConnectionRefusedError):
        os.write(1, b'{"systemMessage": "posthouse guard: no daemon runs, so this edit was not checked"}\n')
        return 0
    except (OSError, ValueError) as failure:
        answer, reason = None, str(failure)
    if answer is not None and answer.status == 200:
        return _finish(answer)
    text = f"posthouse guard: the edit could not be checked ({reason}). POSTHOUSE_GUARD=off switches the guard off.\n"
    os.write(2, text.encode())
    return BLOCKED


def _options(tokens: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = list(tokens)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        options[name] = value if separator or not rest else rest.pop(0)
    return options


def _target(program: str, event: str, options: Mapping[str, str]) -> str:
    name = options.get("--as") or os.environ.get("POSTHOUSE_AGENT") or ""
    words = (program, event, name)
    if not all(word.replace("-", "").isalnum() and word.isascii() for word in words if word):
        raise ValueError("a program, an event and an agent are named by letters, digits and -")
    return f"/v1/hooks/{program}/{event}?as={name}&pid={_PARENT}"


def _shortened(data: bytearray) -> bytes:
    import json

    given = json.loads(data)
    if not isinstance(given, dict):
        raise ValueError("the input is not an object")
    kept = _short_fields(given)
    if isinstance(given.get("tool_input"), dict):
        kept["tool_input"] = _short_fields(given["tool_input"])
    return json.dumps(kept).encode()


def _short_fields(given: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value
        for name, value in given.items()
        if value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) < _FIELD_MAX_CHARS)
    }


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
