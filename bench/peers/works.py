"""The works that the contestants of the comparison do, and what a contestant is.

Every contestant answers after the data is on disk (the report prints how each of them is configured to do that), gets
bodies of the same size and is called from one asyncio loop by an asyncio client. A contestant leaves out the works that
it has no natural way to do. This module measures nothing.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from bench.peers.server_process import find_server
from bench.scales import IN_FLIGHT, QUEUE, SUBSCRIBERS

BODY_BYTES = 256
#: in every body that subscribers count
MARK = "posthouse-bench-peers"
BODY = (MARK + "x" * BODY_BYTES)[:BODY_BYTES]
#: messages that a reader may receive before it acknowledges them, and that it acknowledges at once if it can
READER_BATCH = 500
#: messages of one operation on the bus, one after the other: a single one is too short to time
BUS_BURST = 32

#: Names of operations that the report mentions: bare syncs, posthouse with its defaults, and its other ways.
FLOOR, POSTHOUSE = "floor", "posthouse"
BATCH_SIGNATURE = f"{POSTHOUSE}, batch signature"
TRUSTING_READER = f"{POSTHOUSE}, reader trusts the relay"
#: another way of etcd: one transaction instead of 64 requests
ETCD_TRANSACTION = "etcd, one transaction"


class Work(StrEnum):
    """What is measured; the value names it on the command line and in the report."""

    PUBLISH = "publish"
    PUBLISH_64 = "publish-64"
    LOCK = "lock"
    DRAIN = "drain"
    FAN_OUT = "fan-out"
    BUS = "bus"
    BUS_64 = "bus-64"


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of one operation of a work, and how often it runs."""

    title: str
    #: messages, pairs or deliveries of one operation; rates count these
    items: int
    #: of every contestant, in each repetition
    operations: int


PLANS: Mapping[Work, Plan] = {
    Work.PUBLISH: Plan("one publish at a time", 1, 200),
    Work.PUBLISH_64: Plan("64 at once", IN_FLIGHT, 30),
    Work.LOCK: Plan("lock and unlock, one client", 1, 100),
    Work.DRAIN: Plan("drain, one reader", QUEUE, 2),
    Work.FAN_OUT: Plan(f"fan-out to {SUBSCRIBERS} subscribers", IN_FLIGHT * SUBSCRIBERS, 10),
    Work.BUS: Plan("bus: one by one", BUS_BURST, 20),
    Work.BUS_64: Plan("bus: 64 at once", IN_FLIGHT, 20),
}
#: for tests and a first impression
QUICK_PLANS: Mapping[Work, Plan] = {work: replace(plan, operations=2) for work, plan in PLANS.items()}


@dataclass(frozen=True, slots=True)
class Operation:
    """One way to do a work: `run` is timed, `prepare` is not."""

    name: str
    run: Callable[[], Awaitable[None]]
    prepare: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the report prints about a contestant."""

    version: str
    #: why an answer means that the data is on disk
    durability: str
    client: str
    settings: Mapping[str, str]


class Contestant(ABC):
    """One system of the comparison: a server of its own and a client."""

    name: str
    #: modules of its client that are not among posthouse's own dependencies
    client_modules: Sequence[str] = ()
    #: programs of its server
    programs: Sequence[str] = ()

    def __init__(self) -> None:
        #: what `start` has opened so far
        self._stack = AsyncExitStack()

    def missing(self) -> list[str]:
        """Return what is not installed; a contestant that misses nothing can take part."""
        modules = [f"Python module {name}" for name in self.client_modules if importlib.util.find_spec(name) is None]
        return [*(f"program {name}" for name in self.programs if find_server(name) is None), *modules]

    @abstractmethod
    async def start(self, folder: Path) -> Configuration:
        """Start the server with its data in `folder`, an empty directory, and connect the client."""

    async def stop(self) -> None:
        """Close the client and end the server, even after a start that failed half-way."""
        await self._stack.aclose()

    @abstractmethod
    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        """Return the ways to do each work; they run after the start."""
