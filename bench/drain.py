"""All measurements of queues in one run, and what they have to reach.

A drain is timed from RECEIVE to the answer of the last confirmation, each of them synced. What is compared
alternates in every round; the result is the median of the rounds.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench.comparison import Requirement
from bench.drain_readers import MessageSender, ReaderProcess, open_readers, open_sender
from bench.processes import RunningRelay, running_relay
from bench.scales import DRAIN_SETTINGS, IN_FLIGHT, KIND, SMALL_QUEUE, TURN, WINDOW, DrainScale
from posthouse.keys import NodeKey
from posthouse.model.kinds import MESSAGE
from posthouse.model.limits import CONFIRMATION_MAX_IDS

REQUIRED = (
    Requirement("1,000 queued for one reader, confirmed/s", "one_reader", "per_s", "at least", 10_000, 20_000),
    Requirement("50 readers with 1,000 each, confirmed/s", "crowd", "per_s", "at least", 12_000, 25_000),
    Requirement("a message in a queue of 1,000, of one in a queue of 10", "depth", "drain_cost", "at most", 1.2),
    Requirement("sending into a queue of 1,000, of one of 10", "depth", "send_cost", "at most", 1.2),
    Requirement("sending to who is away, of publishing the same", "sending", "cost", "at most", 1.25),
)


def measure_drain(folder: Path, scale: DrainScale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    report: dict[str, Any] = {
        "bench": "drain",
        "machine": {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0))},
        "settings": dict(DRAIN_SETTINGS),
        "window": WINDOW,
        "ids_per_signature": CONFIRMATION_MAX_IDS,
        "synced_before_answer": True,
        "reader_verifies": False,
    }
    loop_factory = uvloop.new_event_loop
    with running_relay(folder / "relay", DRAIN_SETTINGS) as relay, asyncio.Runner(loop_factory=loop_factory) as runner:
        report |= runner.run(_measure(relay, scale, tell))
    return report | {"required": [requirement.judge(report) for requirement in REQUIRED]}


async def _measure(relay: RunningRelay, scale: DrainScale, tell: Callable[[str], None]) -> dict[str, Any]:
    sender = await open_sender(relay)
    report: dict[str, Any] = {}
    async with open_readers(relay) as crowd:
        tell(f"{scale.queue} for one reader")
        await crowd.drain(sender, 1, scale.queue, WINDOW)  # warms up
        report["one_reader"] = _rates([await crowd.drain(sender, 1, scale.queue, WINDOW) for _ in range(scale.rounds)])
        tell(f"{scale.queue} for each of {scale.readers} readers")
        rounds = [await crowd.drain(sender, scale.readers, scale.queue, WINDOW) for _ in range(scale.crowd_rounds)]
        report["crowd"] = _rates(rounds) | {"readers": scale.readers}
        tell("deep and shallow queues")
        report["depth"] = await _depth(crowd, sender, scale)
    tell("sending and publishing")
    report["sending"] = await _sending(sender, scale)
    report["relay_mib"] = round(relay.resident_mib(), 1)
    sender.close()
    return report


async def _depth(crowd: ReaderProcess, sender: MessageSender, scale: DrainScale) -> dict[str, Any]:
    """Compare one queue with many small ones that hold as much; and sending into a full and into small ones."""
    small = max(1, scale.queue // SMALL_QUEUE)
    drains, sends = [], []
    for _ in range(scale.rounds):
        deep = await crowd.drain(sender, 1, scale.queue, WINDOW)
        shallow = await crowd.drain(sender, small, SMALL_QUEUE, WINDOW)
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
    """Compare messages for readers that are away with plain events of the same size and the same tags.

    They take turns every few hundredths of a second, because the machine is fast and slow by tenths. Checkpoints of
    the store fall into the turns of the one or the other: the turns differ in length, and all rounds together count.
    """
    dice = random.Random(0)
    rounds = [await _sending_round(sender, scale, dice) for _ in range(scale.send_rounds + 1)][1:]  # the first warms up
    messages, events = (sum(seconds) for seconds in zip(*rounds, strict=True))
    return {
        "cost": round(messages / events, 3),
        "messages_per_s": round(scale.sends * len(rounds) / messages),
        "events_per_s": round(scale.sends * len(rounds) / events),
        "rounds": [round(message / event, 3) for message, event in rounds],
    }


async def _sending_round(sender: MessageSender, scale: DrainScale, dice: random.Random) -> tuple[float, float]:
    """Return how many seconds the messages and the events of one round took."""
    nodes = [_node() for _ in range(max(1, scale.sends // scale.queue))]
    each = scale.sends // len(nodes)
    commands = {kind: sender.supply.messages(nodes, each, kind) for kind in (MESSAGE, KIND)}
    seconds = {MESSAGE: 0.0, KIND: 0.0}
    order = [MESSAGE, KIND]
    start = 0
    while start < each * len(nodes):
        end = start + dice.randrange(*TURN) * IN_FLIGHT
        dice.shuffle(order)
        for kind in order:
            part = commands[kind][start:end]
            seconds[kind] += len(part) / await sender.rate(part, IN_FLIGHT)
        start = end
    return seconds[MESSAGE], seconds[KIND]


async def _rate(sender: MessageSender, nodes: list[str], each: int, kind: int) -> float:
    return await sender.rate(sender.supply.messages(nodes, each, kind), IN_FLIGHT)


def _rates(rounds: list[float]) -> dict[str, Any]:
    return {"per_s": round(statistics.median(rounds)), "rounds": [round(each) for each in rounds]}


def _node() -> str:
    return NodeKey.generate().node
