"""A reader of the made-up history: the other end of an open mailbox, inside the same process.

It takes what the relay delivers exactly as a connection would; what it does about a message is up to its scene.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from posthouse.model.limits import RECEIVE_WINDOW
from posthouse.pipeline.demo.cast import Agent
from posthouse.relay.core import Core
from posthouse.relay.deliver.mailbox import Mailbox
from posthouse.relay.deliver.mailboxes import CODE_CONFIRM_TIMEOUT, End

_decode = msgspec.json.Decoder().decode
OnMessage = Callable[[Agent, dict[str, Any]], None]


class Reader:
    """An agent that is online in one mesh."""

    separator = b","

    def __init__(self, core: Core, agent: Agent, mesh: str, on_message: OnMessage) -> None:
        self.agent = agent
        self._core = core
        self._on_message = on_message
        self._mailbox = Mailbox(core.mailboxes, self, mesh, agent.node, RECEIVE_WINDOW)
        core.mailboxes.open(self._mailbox)
        self._task = asyncio.create_task(self._mailbox.run())

    async def close(self, end: End = End.LOST) -> None:
        """Go offline."""
        self._core.mailboxes.close(self._mailbox, end)
        await self._task

    def deliver(self, text: bytes, count: int) -> None:
        for command in _decode(b"[%b]" % text):
            if command[0] == "DELIVER":
                self._on_message(self.agent, command[2])

    def tell(self, frame: bytes) -> None:
        """Who comes and goes is of no interest here."""

    def has_room(self, size: int, count: int) -> bool:
        return True

    async def drain(self) -> None:
        """Everything is taken at once."""

    @property
    def taken_bytes(self) -> int:
        return -1

    def ping(self, on_pong: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(on_pong)

    def end(self, code: int, reason: str) -> None:
        self._core.mailboxes.close(self._mailbox, End.TIMEOUT if code == CODE_CONFIRM_TIMEOUT else End.LOST)
