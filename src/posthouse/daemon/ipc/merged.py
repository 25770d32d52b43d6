"""Reading over several meshes: find a message in any of them, and merge their messages by time.

A request that names a mesh reads that one alone. The next page over several meshes begins at a position in each of
them, so a clock that was set back neither hides a message nor shows it twice. A request that names one message gets
messages of the other meshes from that message's time on, the same nanosecond included.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from posthouse.daemon.context import LocalCall
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.outbox.outbox_rows import OutboxRow
from posthouse.model.address import Recipient
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import is_event_id

T = TypeVar("T")


class _Stored(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def position(self) -> int: ...


StoredT = TypeVar("StoredT", bound=_Stored)


class Bounds(NamedTuple):
    """Where the messages of one mesh begin and end: the fields of InboxFilter and OutboxFilter."""

    after: int = 0
    before: int | None = None
    since_ns: int = 0
    until_ns: int | None = None


class Boundary(NamedTuple):
    """A message, a time, or the end of a page over several meshes, at which another page begins or ends."""

    #: by mesh
    positions: Mapping[str, int]
    #: bounds the other meshes; None: nothing does
    at_ns: int | None = None


def bounds_in(node: MeshNode, after: Boundary | None, before: Boundary | None) -> Bounds:
    """Return what lies between two boundaries in one mesh."""
    bounds = Bounds()
    if after is not None:
        position = after.positions.get(node.mesh)
        since_ns = 0 if position is not None or after.at_ns is None else after.at_ns
        bounds = Bounds(after=position or 0, since_ns=since_ns)
    if before is not None:
        position = before.positions.get(node.mesh)
        if position is None and before.at_ns is not None:
            # a time alone excludes itself; a message of another mesh includes those of the same time
            return bounds._replace(until_ns=before.at_ns + 1 if before.positions else before.at_ns)
        bounds = bounds._replace(before=position)
    return bounds


_PAGE_MARK = "page:"
_PAGE_END = re.compile(_PAGE_MARK + r"[^@,]+@\d{1,18}(,[^@,]+@\d{1,18})*", re.ASCII)


def read_page_end(text: str) -> Boundary | None:
    """Return the end of a page that `next` of an answer gave; None for any other text."""
    if not _PAGE_END.fullmatch(text):
        return None
    ends = (part.rpartition("@") for part in text.removeprefix(_PAGE_MARK).split(","))
    return Boundary({mesh: int(position) for mesh, _mark, position in ends})


def next_page(
    items: Sequence[StoredT],
    limit: int,
    mesh_of: Callable[[StoredT], str],
    without_items: Mapping[str, int],
    *,
    newest_first: bool,
) -> str | None:
    """Return where the page after the first `limit` items begins, None if these are all.

    `without_items` has the position at which each mesh continues if none of the items is from it.
    """
    if len(items) <= limit:
        return None
    if len(without_items) == 1:
        return items[limit - 1].id
    ends = dict(without_items)
    for item in reversed(items[limit:]):  # the first one that is not shown counts
        ends[mesh_of(item)] = item.position + (1 if newest_first else -1)
    for item in items[:limit]:
        ends[mesh_of(item)] = item.position
    return _PAGE_MARK + ",".join(f"{mesh}@{position}" for mesh, position in ends.items())


def merge_by_time(
    pages: Iterable[Iterable[StoredT]], time_of: Callable[[StoredT], int], *, newest_first: bool
) -> list[StoredT]:
    """Return the messages of several meshes in one order; those of one mesh keep theirs."""
    return list(heapq.merge(*pages, key=time_of, reverse=newest_first))


async def find_inbox_item(call: LocalCall, key: str) -> tuple[MeshNode, InboxItem]:
    """Return a message and its mesh, by its id in the inbox or its message id; raises inbox_item_unknown."""
    for node in call.meshes:
        try:
            return node, await node.inbox.find(key, call.agent)
        except PosthouseError as failure:
            if failure.code != "inbox_item_unknown":
                raise
    raise error("inbox_item_unknown", id=key[:80])


async def find_outbox_row(call: LocalCall, key: str) -> tuple[MeshNode, OutboxRow]:
    """Return a row and its mesh, by its id, client_message_id or message id; raises outbox_row_unknown."""
    for node in call.meshes:
        try:
            return node, await node.outbox.find(key, call.agent)
        except PosthouseError as failure:
            if failure.code != "outbox_row_unknown":
                raise
    raise error("outbox_row_unknown", id=key)


async def message_id_of(call: LocalCall, key: str) -> str:
    """Return the message id of a message that this host has received or sent; raises inbox_item_unknown."""
    for find in (_received_id, _sent_id):
        found = await find(call, key)
        if found is not None:
            return found
    if is_event_id(key):
        return key
    raise error("inbox_item_unknown", id=key[:80])


async def _received_id(call: LocalCall, key: str) -> str | None:
    try:
        return (await find_inbox_item(call, key))[1].message_id
    except PosthouseError:
        return None


async def _sent_id(call: LocalCall, key: str) -> str | None:
    try:
        return (await find_outbox_row(call, key))[1].message_id
    except PosthouseError:
        return None


async def resolve_in_meshes(call: LocalCall, name: str | None) -> dict[MeshNode, Recipient | None]:
    """Return the recipient that a name means in each mesh that knows it; None for every mesh if no name is given.

    Raises the refusal of the first mesh if none knows it.
    """
    if name is None:
        return dict.fromkeys(call.meshes)
    found: dict[MeshNode, Recipient | None] = {}
    refusal: PosthouseError | None = None
    for node in call.meshes:
        try:
            found[node] = await node.addresses.resolve_past(name)
        except PosthouseError as failure:
            refusal = refusal or failure
    if not found and refusal is not None:
        raise refusal
    return found
