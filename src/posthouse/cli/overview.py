"""The list of commands that `posthouse --help` shows: the first thing that most people see of posthouse.

It is written without importing a command, or the library that parses command lines, so that it appears at once. Help
for one command (`posthouse COMMAND --help`) comes from that library. `commands` has the table of commands.
"""

from __future__ import annotations

import os
import shutil
import textwrap

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What posthouse is, in a sentence.
TAGLINE = "The relay for teams of AI agents: durable messages, budgets, locks, and a history that can be proved."
#: Group -> command -> its line: the first line of its --help, which a test compares.
GROUPS: dict[str, dict[str, str]] = {
    "Start here": {
        "up": "Run a relay and a daemon on this machine, in the background, and name this host; safe to repeat.",
        "connect": "Configure a coding agent to use posthouse. Shows the change; `--write` applies it.",
        "status": "Show what runs on this machine: relay, daemon, meshes, agents and waiting mail.",
        "console": "Watch agents, conversations, queues, locks and health in a browser, until Ctrl-C.",
        "invite": "Print the whole command that lets another host join.",
        "join": "Join a mesh with an invite: this host gets a key and a name there, and the daemon starts.",
        "down": "Stop the daemon and the relay of this home and wait until they have ended; safe to repeat.",
        "doctor": "Check this installation and show how to fix what is wrong.",
        "version": "Show the version of posthouse and of the Python it runs on.",
    },
    "Mail": {
        "send": "Send a message; returns when the daemon, or without a daemon the relay, has it on disk.",
        "request": "Send a message and wait for the answer.",
        "inbox": "List mail without marking it as seen: unread mail oldest first, all mail newest first.",
        "tail": "Show mail as it arrives, until Ctrl-C; reconnects and continues where it stopped.",
        "history": "Show messages of a topic or with a member, newest first.",
        "trace": "Follow one message through the bus and the outbox of its host, the relay and the inbox of this host.",
        "topic": "Create topics and subscribe to them. `posthouse send '#TOPIC'` posts to one.",
        "message": "Show the delivery state of a message at the relay.",
        "bus": "Use and administer the message bus of this machine.",
    },
    "Team": {
        "agent": "Add, list, rename, retire and pause the agents of this host; each has its own inbox.",
        "peers": "List the hosts of the mesh and their agents, with their presence and status.",
        "profile": "Change the profile that other members see; fields that are not given stay as they are.",
        "use": "Choose the mesh that commands use by default, or show the meshes of this host.",
        "mesh": "Create meshes, invite nodes, and manage members, access, limits, rules, topics and blocks.",
        "trust": "Pin the key of a relay or a member, for example after an intended key change.",
        "lock": "Use locks of a relay: leases with fencing tokens.",
        "reserve": "Reserve files and directories for the agent you act as, all or none.",
        "release": "Release files and directories that the agent you act as has reserved.",
        "guard": "Keep agents off files that other agents have reserved.",
    },
    "Operate": {
        "relay": "Run a relay and maintain its store.",
        "daemon": "Run the daemon of this host: outbox, inbox and a local API for programs.",
        "check": "Check a relay or a daemon for a monitoring system: one line and exit code 0, 1, 2 or 3.",
        "top": "Show connections, queues, rates and refusals of relay and daemon, until q or Ctrl-C.",
        "queue": "Inspect and repair the queues of a mesh, for its admins.",
        "webhook": "Send events to URLs and people, and receive requests from other programs.",
        "keys": "Create, show, import, rotate and recover the key of this node; replace and revoke others.",
        "config": "Show every setting: its value, source (default, file, environment or flag), unit and meaning.",
        "bench": "Send load to a bus, a relay or a daemon and report rate and latency.",
        "completion": "Print the completion script for a shell.",
        "man": "Write the manual pages of posthouse and its commands.",
    },
    "History": {
        "event": "Publish signed events to a relay, query, follow and delete them.",
        "pipeline": "Build a lake of the whole history on Spark; audit it, query it, report on it and replay from it.",
    },
    "For the programs of agents": {
        "mcp": "Connect an agent's program, on stdin and stdout, to the daemon's MCP server.",
        "hook": "Report an event of a coding agent's session, and print how much mail waits for the agent.",
    },
}
_OPTIONS = {
    "--help, -h": "Show this page; `posthouse COMMAND --help` shows that of a command.",
    "--version": "Show the version of posthouse and of the Python it runs on.",
}
_HELP_FLAGS = frozenset({"--help", "-h"})
_COLUMN = 14  # where the lines of the commands begin
_MAX_WIDTH = 120


def is_wanted(tokens: Sequence[str]) -> bool:
    """Return True if a command line asks for the list: it is empty, or asks for help and names no command."""
    if not tokens:
        return True
    return all(token.startswith("-") for token in tokens) and not _HELP_FLAGS.isdisjoint(tokens)


def render() -> str:
    """Return the list of commands, as wide as the terminal."""
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    return "\n".join([textwrap.fill(TAGLINE, width), "", "Usage: posthouse COMMAND", *_sections(width)])


def _sections(width: int) -> Iterator[str]:
    for title, lines in {**GROUPS, "Options": _OPTIONS}.items():
        yield f"\n{_bold(title)}"
        for name, summary in lines.items():
            start, indent = f"  {name:<{_COLUMN - 2}}", " " * _COLUMN
            yield textwrap.fill(
                summary, max(width, 2 * _COLUMN), initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
            )


def _bold(title: str) -> str:
    is_styled = os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[1m{title}\x1b[0m" if is_styled else title
