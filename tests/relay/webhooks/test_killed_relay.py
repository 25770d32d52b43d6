"""A relay that is killed while it sends webhooks: after the restart the hook goes on, and no event is skipped."""

from __future__ import annotations

import asyncio
from pathlib import Path

from posthouse.client import Client, ClientOptions, Pins
from posthouse.keys import NodeKey
from posthouse.model.event import Event
from tests.faults.relay_process import START_S, RelayProcess
from tests.relay.edge import PATIENCE_S
from tests.relay.webhooks.receivers import Receiver, Request

EVENTS = 8
PATIENT = ClientOptions(reconnect_most_s=0.2, publish_timeout_s=START_S)
KILLED_AT = 3  # the number of the request that gets no answer


async def test_hook_of_a_killed_relay_repeats_the_unanswered_event_and_skips_none(
    tmp_path: Path, receiver: Receiver
) -> None:
    relay, killed = RelayProcess(tmp_path, "--webhook-networks", "127.0.0.0/8"), asyncio.Event()

    def answer(_request: Request) -> int:
        if len(receiver.requests) == KILLED_AT:
            relay.kill()
            killed.set()
        return 204

    receiver.answer = answer
    await asyncio.to_thread(relay.start)
    try:
        key = NodeKey.generate()
        async with Client(relay.url, key, pins=Pins(None), options=PATIENT) as client:
            await client.webhooks.add("main", receiver.url, filters=[{"kinds": [7]}])
            events = [client.sign(str(number), kind=7) for number in range(EVENTS)]
            publishing = asyncio.create_task(_publish(client, events))
            async with asyncio.timeout(PATIENCE_S):
                await killed.wait()
            await asyncio.to_thread(relay.start)
            await publishing  # the client goes on with the relay that runs again
        async with asyncio.timeout(PATIENCE_S):
            while len(set(receiver.contents)) < EVENTS:
                receiver.changed.clear()
                await receiver.changed.wait()
    finally:
        relay.kill()
    assert list(dict.fromkeys(receiver.contents)) == [str(number) for number in range(EVENTS)]
    unanswered = receiver.requests[KILLED_AT - 1]
    assert [each.id for each in receiver.requests].count(unanswered.id) > 1


async def _publish(client: Client, events: list[Event]) -> None:
    for event in events:
        await client.publish_event(event)
