"""Follow links between messages to the start of their conversation, in memory, for silver_conversation_messages.

A link names the message that a message continues (`up`), or the conversation that it starts. Messages that continue
each other in a circle, and messages that lead into it, are one conversation, named by the smallest id of the circle,
and have no depth. Spark follows the links of a long history in rounds; this module is for a few hundred messages.
Workers import this module, so it must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

#: Source, mesh and id of a message.
Message = tuple[str, str, str]


class Link(NamedTuple):
    """The link of a message to the message or conversation that it continues."""

    up: str | None
    conversation: str | None


class Place(NamedTuple):
    """The conversation of a message, and its depth in it; None: its links lead into a circle."""

    conversation: str | None
    depth: int | None


def follow_links(links: Mapping[Message, Link]) -> dict[Message, Place]:
    """Return the place of every message; a link must name one of these messages."""
    places: dict[Message, Place] = {}
    for start in links:
        path: dict[Message, None] = {}
        at = start
        while at not in places and at not in path and (up := links[at].up) is not None:
            path[at] = None
            at = (at[0], at[1], up)
        if at in path:
            places |= dict.fromkeys(path, Place(_smallest_from(path, at), None))
            continue
        found = places.setdefault(at, Place(links[at].conversation, 0))
        for distance, message in enumerate(reversed(path), start=1):
            places[message] = found if found.depth is None else Place(found.conversation, found.depth + distance)
    return places


def _smallest_from(path: Iterable[Message], first: Message) -> str:
    """Return the smallest id of the circle that a path enters at `first`."""
    return min(message[2] for message in dropwhile(lambda message: message != first, path))


def follow_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield source, mesh, message_id, conversation and depth of every link."""
    import pyarrow as pa

    links: dict[Message, Link] = {}
    for batch in batches:
        names = ("source", "mesh", "message_id", "up", "conversation")
        for source, mesh, id_, up, conversation in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            links[source, mesh, id_] = Link(up, conversation)
    if links:
        rows = [(*message, place.conversation, place.depth or 0) for message, place in follow_links(links).items()]
        kinds = (*(pa.string(),) * 4, pa.int64())
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=["source", "mesh", "message_id", "conversation", "depth"])
