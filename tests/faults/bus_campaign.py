"""The bus campaign: two processes publish to a third while all three are killed at random and started again."""

from __future__ import annotations

import asyncio
import operator
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

from posthouse import Bus
from tests.bus.mailboxes import Mailbox
from tests.bus.waiting import eventually
from tests.faults.bus_terms import SUBJECT

ROOT = Path(__file__).resolve().parents[2]
PUBLISHERS = ("one", "two")
_LOOK_S = 0.002  # shorter than most publishes: a kill hits any step of one
PATIENCE_S = 600


class Campaign:
    """The three processes, their ledgers, and how often they died."""

    def __init__(
        self,
        folder: Path,
        messages: int,
        kills: int,
        chance: random.Random,
        servers: tuple[str, ...] = ("server",),
        group: str = "",
    ) -> None:
        """Several servers share the endpoint as one group, and one ledger."""
        self.servers = servers
        self.group = group
        self.root = folder / "bus"
        self.folder = folder
        self.per_publisher = messages // len(PUBLISHERS)
        self.kills = kills
        self.random = chance
        self.deaths = 0
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    def ledger(self, name: str) -> Path:
        return self.folder / f"{name}.ledger"

    async def run(self) -> None:
        """Publish everything under fire, then let the server finish in peace."""
        async with Bus(self.root) as bus:
            await bus.register_endpoint(SUBJECT, owner="campaign")
        try:
            for name in self.servers:
                await self._start(name)
            for name in PUBLISHERS:
                await self._start(name)
            await asyncio.wait_for(self._fire(), PATIENCE_S)
            await asyncio.wait_for(self._drain(), PATIENCE_S)
        finally:
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def _fire(self) -> None:
        """Kill somebody each time a random part of the messages has been published."""
        total = self.per_publisher * len(PUBLISHERS)
        for goal in sorted(self.random.sample(range(1, total), self.kills)):
            await eventually(self._published, partial(operator.le, goal), PATIENCE_S)
            await asyncio.sleep(self.random.uniform(0, _LOOK_S))
            await self._kill(self.random.choice((*self.servers, *PUBLISHERS)))
        await eventually(lambda: not any(map(self._is_publishing, PUBLISHERS)), within_s=PATIENCE_S)

    async def _kill(self, victim: str) -> None:
        process = self._processes[victim]
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            self.deaths += 1
        await process.wait()
        if victim in self.servers or self._is_publishing(victim):
            await self._start(victim)

    def _published(self) -> int:
        return sum(self.ledger(name).read_bytes().count(b"\n") for name in PUBLISHERS if self.ledger(name).exists())

    def _is_publishing(self, name: str) -> bool:
        return self._processes[name].returncode != 0

    async def _drain(self) -> None:
        """Let the last server handle what is left, then close orderly."""
        servers = [self._processes[name] for name in self.servers]
        while self._waiting():
            assert all(server.returncode is None for server in servers), "a server ended by itself"
            await asyncio.sleep(0.02)
        for server in servers:
            assert server.stdin is not None
            server.stdin.close()
            assert await server.wait() == 0

    def _waiting(self) -> int:
        return Mailbox(self.root, SUBJECT).depth

    async def _start(self, name: str) -> None:
        if name in self.servers:
            script, arguments = "bus_server", [str(self.root), str(self.ledger("server")), self.group]
        else:
            script = "bus_publisher"
            arguments = [str(self.root), str(self.ledger(name)), name, str(self.per_publisher)]
        self._processes[name] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"tests.faults.{script}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
