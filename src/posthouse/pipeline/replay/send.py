"""Sending the past again, at a pace, and remembering how far that has come.

A batch is sent, then the cursor is written. Killed between the two, the next run sends that batch again, and its target
knows every row of it: what arrives is there once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from posthouse.model.clock import Clock
from posthouse.model.limits import SECOND_NS
from posthouse.pipeline.replay.cursor import Cursor, Cursors
from posthouse.pipeline.replay.target import Old, Target

BATCH = 100  # messages between two cursors
_BATCHES_PER_S = 4  # a low rate is kept evenly, not in bursts


class Replayed(NamedTuple):
    """What a replay has done."""

    #: in this run
    sent: int
    #: of these the target had already
    duplicates: int
    #: since the replay of this name was begun
    total: int
    #: readers of a topic that missed a message, because their queue was full
    not_queued: int = 0


async def replay(
    messages: Iterator[Old],
    target: Target,
    cursors: Cursors,
    name: str,
    cursor: Cursor,
    clock: Clock,
    *,
    rate: float | None = None,
    on_batch: Callable[[Replayed], None] | None = None,
) -> Replayed:
    """Send messages behind a cursor, at most `rate` a second, and move the cursor with them."""
    await target.resume(cursor)
    done = Replayed(0, 0, cursor.sent)
    began_ns = clock.boot_ns()
    size = BATCH if rate is None else max(1, min(BATCH, int(rate / _BATCHES_PER_S)))
    while batch := await asyncio.to_thread(lambda: list(islice(messages, size))):
        taken = await target.send(batch)
        done = Replayed(
            done.sent + len(batch),
            done.duplicates + taken.duplicates,
            done.total + len(batch),
            done.not_queued + taken.not_queued,
        )
        cursor = await _moved(cursor, batch[-1], done.total, target)
        await asyncio.to_thread(cursors.save, name, cursor)
        if on_batch is not None:
            on_batch(done)
        if rate is not None:
            await _keep_pace(clock, began_ns, done.sent / rate)
    return done


async def _moved(cursor: Cursor, last: Old, sent: int, target: Target) -> Cursor:
    return msgspec.structs.replace(
        cursor, at_ns=last.at_ns, epoch=last.epoch, seq=last.seq, sent=sent, bus_seq=await target.place()
    )


async def _keep_pace(clock: Clock, began_ns: int, due_s: float) -> None:
    elapsed_s = (clock.boot_ns() - began_ns) / SECOND_NS
    if due_s > elapsed_s:
        await asyncio.sleep(due_s - elapsed_s)
