"""All measurements of queues in one run, with their required values.

A drain is timed from RECEIVE to the answer of the last confirmation; each answer comes after a sync. The compared
ways alternate in every round; the result is the median of the rounds.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench.comparison import Requirement, describe_machine
from bench.drain_readers import MessageSender, ReaderProcess, open_readers, open_sender
from bench.processes import RelayProcess, running_relay
from bench.scales import DRAIN_SETTINGS, IN_FLIGHT, KIND, SMALL_QUEUE, TURN, WINDOW, DrainScale
from posthouse.keys import NodeKey
from posthouse.model.event import MESSAGE
from posthouse.model.limits import CONFIRMATION_MAX_IDS

REQUIRED = (
    Requirement(
        "One reader with 1,000 queued messages, confirmed/s", "one_reader", "per_s", "at least", 10_000, 20_000
    ),
    Requirement(
        "50 readers with 1,000 queued messages each, confirmed/s", "crowd", "per_s", "at least", 12_000, 25_000
    ),
    Requirement("Cost of draining a queue of 1,000, relative to a queue of 10", "depth", "drain_cost", "at most", 1.2),
    Requirement(
        "Cost of sending into a queue of 1,000, relative to a queue of 10", "depth", "send_cost", "at most", 1.2
    ),
    Requirement(
        "Cost of sending to an offline recipient, relative to a plain event", "sending", "cost", "at most", 1.25
    ),
)


def measure_drain(folder: Path, scale: DrainScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    report: dict[str, Any] = {
        "bench": "drain",
        "machine": describe_machine(),
        "settings": dict(DRAIN_SETTINGS),
        "window": WINDOW,
        "ids_per_signature": CONFIRMATION_MAX_IDS,
        "synced_before_answer": True,
        "reader_verifies": False,
    }
    loop_factory = uvloop.new_event_loop
    with running_relay(folder / "relay", DRAIN_SETTINGS) as relay, asyncio.Runner(loop_factory=loop_factory) as runner:
        report |= runner.run(_measure(relay, scale, on_progress))
    return report | {"required": [requirement.evaluate(report) for requirement in REQUIRED]}


async def _measure(relay: RelayProcess, scale: DrainScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    sender = await open_sender(relay)
    report: dict[str, Any] = {}
    async with open_readers(relay) as readers:
        on_progress(f"{scale.queue} for one reader")
        await readers.drain(sender, 1, scale.queue, WINDOW)  # warm-up
        report["one_reader"] = _rates(
            [await readers.drain(sender, 1, scale.queue, WINDOW) for _ in range(scale.rounds)]
        )
        on_progress(f"{scale.queue} for each of {scale.readers} readers")
        rounds = [
            await readers.drain(sender, scale.readers, scale.queue, WINDOW) for _ in range(scale.all_readers_rounds)
        ]
        report["crowd"] = _rates(rounds) | {"readers": scale.readers}
        on_progress("deep and shallow queues")
        report["depth"] = await _depth(readers, sender, scale)
    on_progress("sending and publishing")
    report["sending"] = await _sending(sender, scale)
    report["relay_mib"] = round(relay.resident_mib(), 1)
    sender.close()
    return report


async def _depth(readers: ReaderProcess, sender: MessageSender, scale: DrainScale) -> dict[str, Any]:
    """Compare one deep queue with many shallow ones of the same total: draining them, and sending into them."""
    small = max(1, scale.queue // SMALL_QUEUE)
    drains, sends = [], []
    for _ in range(scale.rounds):
        deep = await readers.drain(sender, 1, scale.queue, WINDOW)
        shallow = await readers.drain(sender, small, SMALL_QUEUE, WINDOW)
        drains.append(shallow / deep)
        one, many = [_node()], [_node() for _ in range(small)]
        into_one = await _rate(sender, one, scale.queue, MESSAGE)
        into_many = await _rate(sender, many, SMALL_QUEUE, MESSAGE)
        sends.append(into_many / into_one)
    return {
        "drain_cost": round(statistics.median(drains), 3),
        "send_cost": round(statistics.median(sends), 3),
        "drain_rounds": [round(each, 3) for each in drains],
        "send_rounds": [round(each, 3) for each in sends],
    }


async def _sending(sender: MessageSender, scale: DrainScale) -> dict[str, Any]:
    """Compare messages for offline recipients with plain events of the same size and tags.

    Both alternate every few hundredths of a second, because the speed of the machine varies over tenths. Turns have
    random lengths and all rounds are summed, so that checkpoints of the store do not fall on one side only.
    """
    rng = random.Random(0)
    rounds = [await _sending_round(sender, scale, rng) for _ in range(scale.send_rounds + 1)][
        1:
    ]  # the first is the warm-up
    messages, events = (sum(seconds) for seconds in zip(*rounds, strict=True))
    return {
        "cost": round(messages / events, 3),
        "messages_per_s": round(scale.sends * len(rounds) / messages),
        "events_per_s": round(scale.sends * len(rounds) / events),
        "rounds": [round(message / event, 3) for message, event in rounds],
    }


async def _sending_round(sender: MessageSender, scale: DrainScale, rng: random.Random) -> tuple[float, float]:
    """Return the seconds that the messages and the events of one round took."""
    nodes = [_node() for _ in range(max(1, scale.sends // scale.queue))]
    each = scale.sends // len(nodes)
    commands = {kind: sender.source.messages(nodes, each, kind) for kind in (MESSAGE, KIND)}
    seconds = {MESSAGE: 0.0, KIND: 0.0}
    order = [MESSAGE, KIND]
    start = 0
    while start < each * len(nodes):
        end = start + rng.randrange(*TURN) * IN_FLIGHT
        rng.shuffle(order)
        for kind in order:
            part = commands[kind][start:end]
            seconds[kind] += len(part) / await sender.rate(part, IN_FLIGHT)
        start = end
    return seconds[MESSAGE], seconds[KIND]


async def _rate(sender: MessageSender, nodes: list[str], each: int, kind: int) -> float:
    return await sender.rate(sender.source.messages(nodes, each, kind), IN_FLIGHT)


def _rates(rounds: list[float]) -> dict[str, Any]:
    return {"per_s": round(statistics.median(rounds)), "rounds": [round(each) for each in rounds]}


def _node() -> str:
    return NodeKey.generate().node
