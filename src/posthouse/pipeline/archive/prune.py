"""Asking a relay to prune what the lake holds, part by part, oldest first.

Each part is read back from the lake's files and synced before its digests go to the relay, which computes them again
over its own rows and deletes only what is equal. Killed anywhere, at either side, nothing is lost: what the relay has
not deleted it still has, and the next run begins at the oldest record there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from posthouse.client import Client
from posthouse.client.archive import ArchivedRange, Pruned
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.archive.lineage import spans_of
from posthouse.pipeline.archive.part import Shelf
from posthouse.pipeline.lake.lake import Lake

PART_RECORDS = 10_000  # one request: well below a relay's bound and a client's patience


@dataclass(frozen=True, slots=True)
class Archived:
    """What an archive run has done."""

    epoch: str
    pruned: int
    #: events whose content only the lake has now
    emptied: int
    #: of the relay; None when its journal is empty
    oldest_seq: int | None


async def archive(
    client: Client, lake: Lake, before_ns: int, on_part: Callable[[Pruned], None] | None = None
) -> Archived:
    """Prune everything before a time that the lake holds; `on_part` hears of every part."""
    epoch = str((await client.info())["epoch"])
    shelf = await asyncio.to_thread(_shelf, lake, epoch)
    done = Archived(epoch, 0, 0, await client.archive.oldest_seq())
    while done.oldest_seq is not None:
        part = (await asyncio.to_thread(shelf.part, done.oldest_seq, PART_RECORDS)).before(before_ns)
        if not part.records:
            break
        went = await _prune(client, lake, await asyncio.to_thread(part.archived, epoch))
        done = Archived(epoch, done.pruned + went.pruned, done.emptied + went.emptied, went.oldest_seq)
        if on_part is not None:
            on_part(went)
    return done


def _shelf(lake: Lake, epoch: str) -> Shelf:
    epochs = lake.epochs()
    if epoch not in {each.epoch for each in epochs}:
        raise error("archive_unknown_history", path=str(lake.path), epoch=epoch)
    return Shelf(lake, spans_of(epochs, epoch))


async def _prune(client: Client, lake: Lake, archived: ArchivedRange) -> Pruned:
    try:
        return await client.archive.prune(archived)
    except PosthouseError as failure:
        if failure.code != "digest_mismatch":
            raise
        fields = failure.fields
        raise error(
            "archive_differs", path=str(lake.path), from_seq=fields["from_seq"], to_seq=fields["to_seq"]
        ) from failure
