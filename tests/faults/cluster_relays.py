"""Three relays on one database as real processes, each behind a proxy, and everything that can fail around them.

A fault is over when its coroutine returns: the relay runs again, the server is up, connections pass.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from posthouse.keys import NodeKey
from posthouse.model.clock import TEST_CLOCK_ENV
from tests.faults.host_faults import write_offset
from tests.faults.messages_campaign import FLAGS
from tests.faults.relay_process import RelayProcess
from tests.postgresql.cut_proxy import CutProxy, cut_proxy
from tests.postgresql.server import PostgresServer
from tests.relay.cluster.relays import free_port, place_key

RELAYS = 3
#: longer than the server lets a session idle inside a transaction, and than a silent leader leads
STOP_S = (1.2, 3.5)
_COMMIT_S = 5.0  # a busy relay commits far more often
_STEP_S = 10 * 60  # less than a relay tolerates of the clocks of its clients
Fault = Callable[[int], Awaitable[None]]


class ClusterRelays:
    """The relays, their proxies and their database."""

    def __init__(self, folder: Path, postgres: PostgresServer, database: str, chance: random.Random) -> None:
        self._folder = folder
        self._postgres = postgres
        self._database = database
        self.chance = chance
        self._clock_file = folder / "clock"
        self._proxies: list[CutProxy] = []
        self.relays: list[RelayProcess] = []
        self.done: Counter[str] = Counter()
        self._faults: dict[str, Fault] = {
            "kill": self._kill,
            "kill in a transaction": self._kill_in_transaction,
            "stop": self._stop,
            "stop in a transaction": self._stop_in_transaction,
            "restart the database": self._restart_database,
            "cut": self._cut,
            "lose COMMIT": self._lose_commit,
            "lose the answer to COMMIT": self._lose_answer,
            "step the clock": self._step_clock,
        }

    def url(self, first: int = 0) -> str:
        """Return the addresses of all relays, beginning with one of them."""
        order = [*self.relays[first % RELAYS :], *self.relays[: first % RELAYS]]
        return ",".join([relay.url for relay in order])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All relays up, and gone afterwards."""
        key = NodeKey.generate()
        write_offset(self._clock_file, 0)
        async with AsyncExitStack() as stack:
            for number in range(RELAYS):
                socket = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # short, as the path of a socket is
                self._proxies.append(await stack.enter_async_context(cut_proxy(self._postgres.folder, socket)))
                store = self._database.replace(str(self._postgres.folder), str(socket))
                self.relays.append(self._relay(self._folder / str(number), store, key))
            try:
                await asyncio.gather(*[asyncio.to_thread(relay.start) for relay in self.relays])
                yield
            finally:
                for relay in self.relays:
                    await asyncio.to_thread(relay.kill)

    def _relay(self, folder: Path, store: str, key: NodeKey) -> RelayProcess:
        place_key(folder / "relay", key)
        port = free_port()
        relay = RelayProcess(folder, *FLAGS, "--store", store, "--advertise", f"http://127.0.0.1:{port}")
        relay.environ[TEST_CLOCK_ENV] = str(self._clock_file)
        relay.port = port
        return relay

    def kinds(self) -> list[str]:
        """Return the names of all faults, in an order of chance."""
        return self.chance.sample(list(self._faults), len(self._faults))

    async def harm(self, kind: str) -> None:
        """Let one thing fail, at a relay of chance where it concerns one, until it is over."""
        self.done[kind] += 1
        await self._faults[kind](self.chance.randrange(RELAYS))
        for number, relay in enumerate(self.relays):
            if relay.is_dead:  # such as one that has lost its place: the service manager starts it again
                await self._restart(number)

    async def _restart(self, number: int) -> None:
        await asyncio.to_thread(self.relays[number].kill)
        await self._start(number)

    async def _start(self, number: int) -> None:
        """Start a relay, and again if it meets a cut that was prepared before, as a service manager does."""
        while True:
            try:
                await asyncio.to_thread(self.relays[number].start)
            except AssertionError as failure:
                if '"store_unavailable"' not in str(failure):
                    raise
            else:
                return

    async def _kill(self, number: int) -> None:
        await self._restart(number)

    async def _kill_in_transaction(self, number: int) -> None:
        async with self._commit_held(number):
            await asyncio.to_thread(self.relays[number].kill)
        await self._start(number)

    async def _stop(self, number: int) -> None:
        self.relays[number].signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(*STOP_S))
        self.relays[number].signal(signal.SIGCONT)

    async def _stop_in_transaction(self, number: int) -> None:
        async with self._commit_held(number):
            await self._stop(number)

    @asynccontextmanager
    async def _commit_held(self, number: int) -> AsyncIterator[None]:
        """The relay has sent COMMIT, which has not reached the server; or it has nothing to commit."""
        proxy = self._proxies[number]
        with suppress(TimeoutError):
            async with asyncio.timeout(_COMMIT_S):
                await proxy.hold_commit()
        try:
            yield
        finally:
            proxy.passes.set()

    async def _restart_database(self, _number: int) -> None:
        await asyncio.to_thread(self._postgres.stop, signal.SIGQUIT)  # immediately: nothing is finished or saved
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        self._postgres.start()  # not on a thread of a pool: the server ends with the thread that started it

    async def _cut(self, number: int) -> None:
        self._proxies[number].cut()

    async def _lose_commit(self, number: int) -> None:
        self._proxies[number].cut_next = "command"

    async def _lose_answer(self, number: int) -> None:
        self._proxies[number].cut_next = "answer"

    async def _step_clock(self, _number: int) -> None:
        write_offset(self._clock_file, self.chance.choice((-_STEP_S, 0, _STEP_S)))
