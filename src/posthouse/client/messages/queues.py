"""The state of messages, and the operator's view of queues, over HTTP: list, purge, requeue.

A node sees its own queues, an admin of a mesh sees all of them. Nothing here carries the content of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posthouse.client.transport import Requests
from posthouse.model.errors import error
from posthouse.model.event import is_event_id
from posthouse.model.message_api import MessageStates, PurgedMessages, Queue, QueueList, QueueRow, QueueRows, Requeued
from posthouse.model.node import validate_mesh_name


class Queues:
    """The queues of a relay that this node may see."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def message(self, message_id: str) -> MessageStates:
        """Return the state of a message per recipient; its sender, its recipients and admins may see it."""
        if not is_event_id(message_id):
            raise error("id_invalid", id=message_id[:80], reason="an event id has 64 lower-case hexadecimal digits")
        return await self._requests.get_as(MessageStates, f"/v1/messages/{message_id}")

    async def all(self, mesh: str, *, limit: int | None = None) -> list[Queue]:
        """Return the queues of a mesh that are not empty, by reader; all of them without a limit."""
        queues: list[Queue] = []
        after: str | None = None
        while True:
            page = await self._requests.get_as(QueueList, _path(mesh), {"after": after})
            queues += page.queues
            if (after := page.next) is None or (limit is not None and len(queues) >= limit):
                return queues if limit is None else queues[:limit]

    async def rows(
        self, mesh: str, node: str | None = None, *, state: str = "open", limit: int | None = None
    ) -> list[QueueRow]:
        """Return messages of one queue, or of all queues of a mesh, in queue order; all of them without a limit."""
        rows: list[QueueRow] = []
        after: str | None = None
        while True:
            page = await self.page(mesh, node, state=state, after=after)
            rows += page.rows
            if (after := page.next) is None or (limit is not None and len(rows) >= limit):
                return rows if limit is None else rows[:limit]

    async def page(
        self,
        mesh: str,
        node: str | None = None,
        *,
        state: str = "open",
        after: str | None = None,
        limit: int | None = None,
    ) -> QueueRows:
        """Return one page of messages, after `next` of the page before."""
        parameters = {"node": node, "state": state, "after": after, "limit": limit}
        return await self._requests.get_as(QueueRows, _path(mesh, "/rows"), parameters)

    async def purge(
        self,
        mesh: str,
        node: str,
        *,
        ids: Sequence[str] | None = None,
        state: str | None = None,
        via: str | None = None,
    ) -> tuple[str, ...]:
        """Remove messages from a queue permanently and return their ids.

        With `ids` these messages, open or parked; without, every message in `state`, which is open by default. `via`
        names the program through which a person acts, for the journal; likewise in `requeue`.
        """
        states = [state] if state is not None else ["open"] if ids is None else ["open", "parked"]
        purged: tuple[str, ...] = ()
        for each in states:
            body = _without_none({"node": node, "ids": ids, "state": each, "via": via})
            purged += (await self._requests.post_as(PurgedMessages, _path(mesh, "/purge"), body)).purged
        return purged

    async def requeue(
        self, mesh: str, node: str, *, ids: Sequence[str] | None = None, via: str | None = None
    ) -> Requeued:
        """Move parked messages back to the tail of a queue: those with `ids`, or all of them."""
        body = _without_none({"node": node, "ids": ids, "via": via})
        return await self._requests.post_as(Requeued, _path(mesh, "/requeue"), body)


def _without_none(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _path(mesh: str, rest: str = "") -> str:
    return f"/v1/meshes/{validate_mesh_name(mesh)}/queues{rest}"
