"""Reading over several meshes: find a message in any of them, and merge their messages by time.

A request that names a mesh reads that one alone. A page of one mesh is selected by position; beyond the message where
a page begins or ends, the other meshes are selected by its time, which includes messages of the same nanosecond: they
may be shown twice and are never left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from posthouse.daemon.context import LocalCall
from posthouse.daemon.inbox.inbox import InboxItem
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.outbox.outbox_rows import OutboxRow
from posthouse.model.address import Recipient
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import is_event_id

T = TypeVar("T")


class _Stored(Protocol):
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
    """A message, or only a time, at which a page begins or ends."""

    at_ns: int
    #: mesh and position of the message
    mesh: str | None = None
    position: int = 0


def bounds_in(node: MeshNode, after: Boundary | None, before: Boundary | None) -> Bounds:
    """Return what lies between two boundaries in one mesh."""
    bounds = Bounds()
    if after is not None:
        is_here = after.mesh == node.mesh
        bounds = bounds._replace(after=after.position) if is_here else bounds._replace(since_ns=after.at_ns)
    if before is not None:
        # a time alone excludes itself; a message of another mesh includes those of the same time
        until_ns = before.at_ns if before.mesh is None else before.at_ns + 1
        is_here = before.mesh == node.mesh
        bounds = bounds._replace(before=before.position) if is_here else bounds._replace(until_ns=until_ns)
    return bounds


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
    """Return what a name means in each mesh that knows it, or None everywhere without a name.

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
