"""The relay campaign: publishers and subscribers keep going while the relay under them is killed again and again.

What publishers were answered and what subscribers saw is written down; relay_checker.py compares both with the store.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from posthouse.client import Client, ClientOptions, Pins, Published, Received
from posthouse.keys import NodeKey
from posthouse.model.event import Event
from tests.faults.relay_between import between
from tests.faults.relay_process import RelayProcess

PATIENCE_S = 300
KIND = 7
BURST = 40
END = "that was all"
#: nothing under test: patient enough for a relay that is killed on a busy machine
OPTIONS = ClientOptions(publish_timeout_s=120, reconnect_most_s=0.3, in_flight_events=200, buffer_events=100)

Work = Callable[["Campaign"], Coroutine[Any, Any, None]]


@dataclass
class Ledger:
    """What happened, as the clients saw it."""

    #: event id -> seq the relay answered with
    answered: dict[str, int] = field(default_factory=dict)
    #: subscriber -> (seq, event id) in the order seen
    seen: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    #: contents that were meant to be published, each once
    meant: list[str] = field(default_factory=list)
    #: answers that said the event was there already
    duplicates: int = 0
    kills: int = 0


class Campaign:
    """One relay, some clients, and the fire."""

    def __init__(self, folder: Path, chance: random.Random, kills: int) -> None:
        self.relay = RelayProcess(folder, "--event-rate", "1000000", "--event-burst", "1000000")
        self.ledger = Ledger()
        self._chance = chance
        self._kills = kills
        self._is_over = asyncio.Event()
        #: every second kill waits until this is true
        self.is_ripe: Callable[[], bool] = lambda: True

    def client(self, url: str | None = None) -> Client:
        """Make a client with a key of its own."""
        return Client(url or self.relay.url, NodeKey.generate(), pins=Pins(None), options=OPTIONS)

    async def run(self, publishers: Sequence[Work], subscribers: Sequence[Work] = ()) -> Ledger:
        """Run the relay, the fire and the clients; the last event of all tells subscribers that they have all."""
        await asyncio.to_thread(self.relay.start)
        try:
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as readers:
                for subscriber in subscribers:
                    readers.create_task(subscriber(self))
                async with asyncio.TaskGroup() as writers:
                    writers.create_task(self._fire())
                    for publisher in publishers:
                        writers.create_task(publisher(self))
                await self._publish_end()
        finally:
            await asyncio.to_thread(self.relay.kill)
        return self.ledger

    async def _publish_end(self) -> None:
        async with self.client() as client:
            event = client.sign(END, kind=KIND)
            self.ledger.meant.append(event.id)
            self.note(event, await client.publish_event(event))

    async def _fire(self) -> None:
        for number in range(self._kills):
            before = len(self.ledger.answered)
            while len(self.ledger.answered) < before + BURST:  # noqa: ASYNC110 - under load means: it has answered
                await asyncio.sleep(0.005)
            await asyncio.sleep(self._chance.uniform(0.0, 0.1))
            while number % 2 and not self.is_ripe():  # noqa: ASYNC110 - a state of somebody else
                await asyncio.sleep(0.005)
            await asyncio.to_thread(self.relay.kill)
            self.ledger.kills += 1
            await asyncio.to_thread(self.relay.start)
        self._is_over.set()

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def see(self, name: str, received: Received) -> bool:
        """Write down what a subscriber saw, and tell whether it was the last of all."""
        assert received.seq is not None
        self.ledger.seen.setdefault(name, []).append((received.seq, received.event.id))
        return received.event.content == END

    def note(self, event: Event, published: Published) -> None:
        """Write down an answer."""
        assert published.seq is not None
        self.ledger.answered[event.id] = published.seq
        self.ledger.duplicates += published.duplicate


async def publish_all(campaign: Campaign, url: str | None = None) -> None:
    """Publish in bursts until the fire is over, and one burst more; every event must be answered."""
    async with campaign.client(url) as client:
        await client.connect(is_patient=True)
        is_last = False
        numbers = count()
        while not is_last:
            is_last = campaign.is_over
            events = [client.sign(f"{client.key.node} {next(numbers)}", kind=KIND) for _ in range(BURST)]
            campaign.ledger.meant += [event.id for event in events]
            for event, answer in zip(events, await client.publish_many(events), strict=True):
                assert isinstance(answer, Published), answer
                campaign.note(event, answer)


async def publish_with_late_answers(campaign: Campaign) -> None:
    """Publish over a connection whose answers come late: at each kill some events are stored and not answered."""
    async with between(campaign.relay.url, "late") as place:
        campaign.is_ripe = lambda: place.held > 0
        await publish_all(campaign, place.url)


async def subscribe_all(campaign: Campaign, name: str) -> None:
    """Follow everything over reconnects until the last event."""
    async with campaign.client() as client:
        await client.connect(is_patient=True)
        async for received in await client.subscribe({"kinds": [KIND]}):
            if campaign.see(name, received):
                return


async def subscribe_in_turns(campaign: Campaign, name: str) -> None:
    """Follow everything with one client after the other, each going on from the cursor of the one before."""
    cursor: str | None = None
    is_end = False
    while not is_end:
        async with campaign.client() as client:
            await client.connect(is_patient=True)
            subscription = await client.subscribe({"kinds": [KIND]}, cursor=cursor)
            if cursor is None:  # it begins anew as long as the relay has not given it a place to go on from
                campaign.ledger.seen[name] = []
            for _ in range(3 * BURST):
                is_end = campaign.see(name, await anext(subscription))
                if is_end:
                    break
            cursor = subscription.cursor
