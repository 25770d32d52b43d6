"""Processes that stand for coding agents, the hooks they run, and mail for their agents."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

from posthouse.daemon.inbox.inbox_items import NewItem
from tests.daemon.hosts import Host, Said

NOWHERE = "ws://127.0.0.1:9"
SECRET = "the words of the message"
_numbers = count(1)
Start = Callable[[], "Program"]


class Program:
    """A process that runs until it is killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def programs() -> Iterator[Start]:
    """Give a function that starts programs, and kill them at the end."""
    with ExitStack() as opened:

        def start() -> Program:
            program = Program()
            opened.callback(program.kill)
            return program

        yield start


async def hook(
    host: Host, program: Program, event: str, kind: str = "claude-code", name: str = "", **given: Any
) -> Said:
    """Run one hook of a program."""
    given = {"session_id": "s1", **given}
    said = await host.ask("POST", f"/v1/hooks/{kind}/{event}", params={"pid": program.pid, "as": name}, json=given)
    if isinstance(said.body, str) and said.body.startswith("{"):
        said.body = json.loads(said.body)
    return said


def heard(said: Said) -> str:
    """Return what the model is told by the answer to a hook."""
    assert said.status == 200, said.body
    if not said.body:
        return ""
    if isinstance(said.body, dict):
        return str(said.body["hookSpecificOutput"]["additionalContext"])
    return str(said.body)


def new_item(agent: str, sender: str = "ed25519:" + "ab" * 32, **fields: Any) -> NewItem:
    """Return a message for an agent that no inbox has yet."""
    number = next(_numbers)
    return NewItem(
        id=f"{number:026d}",
        client_message_id=f"c{number}",
        message_id=f"{number:064x}",
        mesh="main",
        topic=fields.get("topic"),
        sender=sender,
        sender_name=fields.get("sender_name"),
        body=SECRET,
        meta="{}",
        reply_to_id=None,
        priority="next",
        budget=None,
        undecryptable=None,
        from_agent=fields.get("from_agent", ""),
        to_agent=agent,
        agents=(agent,),
    )


async def deliver(host: Host, agent: str, **fields: Any) -> str:
    """Put one message into the inbox of an agent, as the uplink does; return its id."""
    item = new_item(agent, **fields)
    await host.mesh.inbox.put([item])
    return item.id
