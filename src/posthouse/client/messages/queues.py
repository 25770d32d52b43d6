"""Where a message is, and the operator's view of queues, over HTTP: list, purge, requeue.

A node sees its own queues, an admin of a mesh sees all of them. Nothing here carries the content of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from posthouse.client.transport import Requests
from posthouse.model.api import MessageStates, Queue, QueueRow, Requeued
from posthouse.model.errors import error
from posthouse.model.event import is_event_id
from posthouse.model.node import validate_mesh_name

R = TypeVar("R")


class Queues:
    """The queues of a relay; everybody sees its own, admins of a mesh all of it."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def message(self, message_id: str) -> MessageStates:
        """Return where a message is, as its sender, a recipient or an admin may see it."""
        if not is_event_id(message_id):
            raise error("id_invalid", id=message_id[:80], reason="an event id has 64 lower-case hexadecimal digits")
        return self._read(await self._requests.get(f"/v1/messages/{message_id}"), MessageStates)

    async def all(self, mesh: str) -> list[Queue]:
        """Return the queues of a mesh in which something is."""
        queues: list[Queue] = []
        after: str | None = None
        while True:
            answer = self._page(await self._requests.get(_path(mesh), {"after": after}), "queues", Queue)
            queues += answer[0]
            if (after := answer[1]) is None:
                return queues

    async def rows(
        self, mesh: str, node: str | None = None, *, state: str = "open", limit: int | None = None
    ) -> list[QueueRow]:
        """Return messages in one queue, or in all of a mesh, in the order of the queue; all of them without a limit."""
        rows: list[QueueRow] = []
        after: str | None = None
        while True:
            given = {"node": node, "state": state, "after": after}
            found, after = self._page(await self._requests.get(_path(mesh, "/rows"), given), "rows", QueueRow)
            rows += found
            if after is None or (limit is not None and len(rows) >= limit):
                return rows if limit is None else rows[:limit]

    async def purge(
        self, mesh: str, node: str, *, ids: Sequence[str] | None = None, state: str | None = None
    ) -> tuple[str, ...]:
        """Take messages out of a queue for good and return their ids.

        Those named, open or parked; or all in a state, open unless another one is named.
        """
        states = [state] if state is not None else ["open"] if ids is None else ["open", "parked"]
        purged: tuple[str, ...] = ()
        for each in states:
            answer = await self._change(mesh, "/purge", {"node": node, "ids": ids, "state": each})
            purged += self._read(answer, _Purged).purged
        return purged

    async def requeue(self, mesh: str, node: str, *, ids: Sequence[str] | None = None) -> Requeued:
        """Open parked messages again, at the tail of the queue: those named, or all of the reader."""
        return self._read(await self._change(mesh, "/requeue", {"node": node, "ids": ids}), Requeued)

    async def _change(self, mesh: str, verb: str, given: dict[str, Any]) -> bytes:
        body = {name: value for name, value in given.items() if value is not None}
        return await self._requests.post(_path(mesh, verb), body)

    def _page(self, data: bytes, part: str, kind: type[R]) -> tuple[list[R], str | None]:
        answer = self._requests.decode(data)
        following = answer.get("next") if isinstance(answer, dict) else None
        try:
            rows: list[R] = msgspec.convert(answer[part], list[kind])  # type: ignore[valid-type]
        except (KeyError, TypeError, msgspec.ValidationError) as fault:
            raise error("answer_invalid", relay=self._requests.origin, reason=f"{part}: {fault}") from fault
        return rows, following if isinstance(following, str) else None

    def _read(self, data: bytes, kind: type[R]) -> R:
        try:
            return msgspec.json.decode(data, type=kind)
        except ValueError as fault:
            raise error("answer_invalid", relay=self._requests.origin, reason=str(fault)) from fault


class _Purged(msgspec.Struct, frozen=True):
    purged: tuple[str, ...]


def _path(mesh: str, rest: str = "") -> str:
    return f"/v1/meshes/{validate_mesh_name(mesh)}/queues{rest}"
