"""The open mailbox of a Pinch address: that of every reader, with what this wire says before the first message.

The address was proved by a signature, so no mesh decides about its right to read. An agent may begin to listen only
once it has taken AUTH_RESULT in; so what follows waits for the answer to a ping behind it, but not for ever.
"""

from __future__ import annotations

import asyncio
import contextlib

from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.node import PINCH_MESH
from posthouse.relay.deliver.mailbox import Mailbox
from posthouse.relay.deliver.mailboxes import Mailboxes
from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.pinch.peer import PinchPeer
from posthouse.relay.pinch.settings import PinchSettings
from posthouse.relay.pinch.wire import queue_status
from posthouse.relay.stream.frame import binary_frame


class PinchMailbox(Mailbox):
    """One login of an address."""

    def __init__(self, mailboxes: Mailboxes, peer: PinchPeer, address: str, settings: PinchSettings) -> None:
        super().__init__(mailboxes, peer, PINCH_MESH, address, settings.window)
        self.reads = mailboxes.store.pinch
        self._boxes = mailboxes
        self._greeting_s = settings.greeting_s

    def missing_right(self, meshes: Meshes) -> PosthouseError | None:
        return None

    async def _begin(self) -> bool:
        await self._greeted()
        count = await self._boxes.count_waiting(self)
        if count and not self.is_closed:
            now_ms = self._boxes.clock.wall_ns() // MILLISECOND_NS
            self.peer.deliver(binary_frame(queue_status(now_ms, self.node, count)), 1)
        return count > 0

    async def _greeted(self) -> None:
        read = asyncio.Event()
        self.peer.ping(read.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._greeting_s):
                await read.wait()
