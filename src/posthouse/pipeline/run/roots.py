"""Publishing the Merkle roots of bronze as signed addressable events, so that later tampering shows.

    kind 30101, d = lake/<epoch>/<feed>/<to>, content = the seal without its leaves, as canonical JSON

Every root has an address of its own: publishing it again replaces it by the same. Which commits were published is
noted beside the tables; a note that was lost only means that roots are published once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import rfc8785

from posthouse.files import read_private, write_atomic
from posthouse.model.kinds import LAKE_ROOT
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze import COPIES
from posthouse.pipeline.lake.merkle import NOTE, Seal

if TYPE_CHECKING:
    from posthouse.client import Client

PUBLISHED_NAME = "published.json"
_MANY = 200  # events sent at once


class Published(msgspec.Struct):
    """Which commits are published where: relay -> table -> version of the last."""

    relays: dict[str, dict[str, int]] = {}


def seals(lake: Lake, table: str, after: int = -1) -> Iterator[tuple[int, Seal]]:
    """Yield the commits of a bronze table that come after a version, each with its seal."""
    for commit in lake.delta(table).history():
        if commit["version"] > after and NOTE in commit:
            yield commit["version"], msgspec.json.decode(commit[NOTE], type=Seal)


def address_of(seal: Seal) -> str:
    """Return the d of a seal's event."""
    return f"lake/{seal.epoch}/{seal.feed}/{seal.to}"


def content_of(seal: Seal) -> str:
    """Return what is published of a seal."""
    fields = msgspec.to_builtins(seal)
    del fields["leaves"]
    return rfc8785.dumps(fields).decode()


def publish_roots(lake: Lake, client: Client) -> int:
    """Publish every root that this relay has not got from this lake yet; return how many."""
    published = _read(lake)
    known = published.relays.setdefault(client.url.origin, {})
    found = {table: list(seals(lake, table, known.get(table, -1))) for table in COPIES}
    wanted = [seal for each in found.values() for _, seal in each]
    if wanted:
        asyncio.run(_send(client, wanted))
        known |= {table: each[-1][0] for table, each in found.items() if each}
        write_atomic(lake.path / PUBLISHED_NAME, msgspec.json.encode(published))
    return len(wanted)


async def _send(client: Client, wanted: list[Seal]) -> None:
    async with client:
        for start in range(0, len(wanted), _MANY):
            events = [
                client.sign(content_of(seal), kind=LAKE_ROOT, tags=[("d", address_of(seal))])
                for seal in wanted[start : start + _MANY]
            ]
            for answer in await client.publish_many(events):
                if isinstance(answer, Exception):
                    raise answer


def _read(lake: Lake) -> Published:
    try:
        return msgspec.json.decode(read_private(lake.path / PUBLISHED_NAME), type=Published)
    except FileNotFoundError:
        return Published()
