"""The Pinch campaign: a backlog is read while the agent or the relay is killed again and again.

Messages are numbered in the order they were sent. What the reader wrote down is kept per run of its process and
connection, and compared with what was sent, with what the sender heard, and with the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from nacl.signing import SigningKey

from examples.pinch_agent.agent import CONFIRM, MESSAGE, Agent
from examples.pinch_agent.pinch_pb2 import Envelope, MessageType
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.faults.child import Child
from tests.faults.relay_process import RelayProcess

HOST = "relay.test"
PATIENCE_S = 300
QUEUE_STATUS = MessageType.MESSAGE_TYPE_QUEUE_STATUS
_FLAGS = ("--pinch-host", HOST, "--pinch-rate", "1000000", "--pinch-burst", "1000000", "--queue-max", "10000")


class Campaign:
    """One relay, one reader in a process, one sender, and what ends."""

    def __init__(self, folder: Path, manner: str = "careful") -> None:
        self.relay = RelayProcess(folder, *_FLAGS)
        self.sender = Agent(HOST)
        self.key = SigningKey.generate()
        self.address = Agent(HOST, self.key).address
        #: texts in the order sent
        self.sent: list[str] = []
        #: (run and connection, text) in the order seen
        self.seen: list[tuple[tuple[int, int], str]] = []
        self.confirmed: list[str] = []
        self._ids: dict[str, str] = {}
        self._manner = manner
        self._store = folder / "stored"
        self._child: Child | None = None
        self._runs = 0
        self._taken = 0

    async def send(self, texts: Sequence[str]) -> None:
        """Queue messages; return once all of them are committed."""
        await self.sender.connect(self.relay.url)
        for text in texts:
            self._ids[await self.sender.write(self.address, text)] = text
        self.sent += texts
        last = self.sender.compose(self.sender.address, "the end")
        await self.sender.send(last)
        async with asyncio.timeout(PATIENCE_S):
            while (envelope := await self.sender.receive()).message_id != last.message_id:
                assert envelope.type in (MESSAGE, CONFIRM, QUEUE_STATUS), envelope
                self._hear(envelope)
        await self.sender.confirm(last)
        while (await self.sender.receive()).type != CONFIRM:  # of the note to itself
            pass
        await self.sender.disconnect()

    async def start_reader(self) -> None:
        """Start the reader's process."""
        self._runs, self._taken = self._runs + 1, 0
        args = (self.relay.url, HOST, bytes(self.key).hex(), self._manner, str(self._store))
        self._child = await asyncio.to_thread(Child, "tests.faults.pinch_reader", *args)

    async def kill_reader(self) -> None:
        """End the reader without a warning, and take down what it told."""
        if self._child is not None:
            child, self._child = self._child, None
            await asyncio.to_thread(child.kill)
            self._take(child.lines)

    async def kill_relay(self) -> None:
        """End the relay without a warning, and start it again."""
        await asyncio.to_thread(self.relay.kill)
        await asyncio.to_thread(self.relay.start)

    async def await_lines(self, count: int) -> None:
        """Wait until the reader has told so many more lines, or everything there is."""
        goal = min(self._taken + count, self._taken + len(self.sent) - len(self.texts))
        async with asyncio.timeout(PATIENCE_S):
            while self._read() < goal:  # noqa: ASYNC110 - the child tells when it does
                await asyncio.sleep(0.005)

    async def hear(self) -> None:
        """Come back as the sender and hear what was confirmed, all of it."""
        await self.sender.connect(self.relay.url)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.confirmed) < len(self.sent):
                self._hear(await self.sender.receive())
                self._read()
        await self.sender.disconnect()

    async def hear_waiting(self) -> None:
        """Come back as the sender and hear the confirms that wait now; there must be some."""
        await self.sender.connect(self.relay.url)
        async with asyncio.timeout(PATIENCE_S):
            while (envelope := await self.sender.receive()).type != QUEUE_STATUS:
                self._hear(envelope)
            for _ in range(envelope.queue_status.pending_count):
                self._hear(await self.sender.receive())
        await self.sender.disconnect()

    @property
    def texts(self) -> list[str]:
        """What the reader has seen, each once, in the order it saw it first."""
        return list(dict.fromkeys(text for _place, text in self.seen))

    def findings(self) -> list[str]:
        """Return what is wrong, in words."""
        wrong = [f"lost: {text}" for text in self.sent if text not in set(self.texts)]
        order = [self.sent.index(text) for text in self.texts]
        if order != sorted(order):
            wrong.append("order: messages were first seen in another order than they were sent")
        for place in {place for place, _text in self.seen}:
            texts = [text for at, text in self.seen if at == place]
            if len(texts) != len(set(texts)):
                wrong.append(f"twice: a message came twice on connection {place}")
        if sorted(self.confirmed) != sorted(self.sent):
            wrong.append("confirmed: not every message is confirmed exactly once")
        return wrong + check_relay(self.relay.data_dir / FILE_NAME)

    def _hear(self, envelope: Envelope) -> None:
        if envelope.type == CONFIRM:
            assert self.sender.is_confirmed_by_reader(envelope)
            text = self._ids.get(envelope.delivery_confirm.message_id.decode())
            if text is not None:  # else of a note to itself
                self.confirmed.append(text)

    def _read(self) -> int:
        if self._child is not None:
            self._take(self._child.lines)
        return self._taken

    def _take(self, lines: Sequence[str]) -> None:
        for line in lines[self._taken :]:
            _kind, connection, text = line.split(" ", 2)
            self.seen.append(((self._runs, int(connection)), text))
        self._taken = len(lines)
