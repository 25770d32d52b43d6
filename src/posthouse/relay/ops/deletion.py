"""Deletion by an administrator: select events, and publish deletions of them that the relay's key signs.

Such a deletion is an event like any other: it takes the accept path, reaches streams, is archived, and shows readers
who asked for it. Nodes see only deletions of events that they could read: direct messages are named in a deletion for
each end. Work is bounded for each request; a caller continues after the seq that the answer names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from posthouse.client.trust.signing import sign_event, with_mesh
from posthouse.keys import NodeKey
from posthouse.model.clock import Clock
from posthouse.model.deletion import BY_TAG, deletion_tags
from posthouse.model.event import DELETION, Event, decode_event, encode_event
from posthouse.model.filters import Filter
from posthouse.relay.store.event_rows import ContentRow
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.wire.accept_results import Answer, Declined, DeletionAccepted

DELETED_AT_ONCE = 150  # events that one deletion names: below the limit of tags, and a few milliseconds to erase
_MATCHED_MOST = 20 * DELETED_AT_ONCE  # of one request
_SEQS_PER_READ = 250
_SEQS_MOST = 400 * _SEQS_PER_READ  # that one request reads


@dataclass(frozen=True, slots=True)
class DeletionOrder:
    """The events that an administrator wants deleted: those that match all filters."""

    #: the administrator
    actor: str
    filters: Sequence[Filter]
    #: in the administrator's words; readers of the events see it
    reason: str = ""
    #: count the events and delete none
    is_dry_run: bool = False
    #: continue after this seq
    after_seq: int = 0


@dataclass(slots=True)
class DeletionResult:
    """How far an order was carried out."""

    matched: int = 0
    #: events that lost their content; others had lost it before, and are named for the archive
    erased: int = 0
    #: where the next request continues; None: the order is done
    through_seq: int | None = None


#: mesh, and the two ends of a direct message
_Audience = tuple[str, tuple[str, ...]]


class AdminDeletion:
    """Carries out orders of administrators."""

    def __init__(
        self, store: RelayStore, accept_many: Callable[[Sequence[bytes]], Awaitable[list[Answer]]], clock: Clock
    ) -> None:
        self._store = store
        self._accept_many = accept_many
        self._clock = clock

    async def delete(self, key: NodeKey, order: DeletionOrder) -> DeletionResult:
        """Delete the events that an order selects, as many as one request may; `key` is the relay's."""
        result = DeletionResult()
        waiting: dict[_Audience, list[ContentRow]] = {}
        async for seq, found in self._select(order, key.node):
            result.matched += len(found)
            for row in found:
                rows = waiting.setdefault(_audience(row), [])
                rows.append(row)
                if len(rows) >= DELETED_AT_ONCE:
                    result.erased += await self._publish(key, order, waiting.pop(_audience(row)))
            result.through_seq = seq
            if result.matched >= _MATCHED_MOST:
                break
        for rows in waiting.values():
            result.erased += await self._publish(key, order, rows)
        return result

    async def _select(self, order: DeletionOrder, relay: str) -> AsyncIterator[tuple[int | None, list[ContentRow]]]:
        """Yield matching events in steps, each with the seq that it has reached; None at the end of the store."""
        if (ids := next((each.ids for each in order.filters if each.ids is not None), None)) is not None:
            rows = await self._store.find_contents(sorted(ids))
            yield None, [row for row in rows if _is_wanted(row, order, relay)]
            return
        head, after = (await self._store.extent()).head, order.after_seq
        end = min(head, after + _SEQS_MOST)
        while after < end:
            through = min(after + _SEQS_PER_READ, head)
            rows = await self._store.contents_between(after, through)
            yield (through if through < head else None), [row for row in rows if _is_wanted(row, order, relay)]
            after = through

    async def _publish(self, key: NodeKey, order: DeletionOrder, rows: Sequence[ContentRow]) -> int:
        """Delete events with one audience; return how many lost their content."""
        if order.is_dry_run:
            return 0
        mesh, ends = _audience(rows[0])
        events: list[bytes] = []
        for end in ends or (None,):
            tags = [*deletion_tags([row.id for row in rows], recipient=end), (BY_TAG, order.actor)]
            signed = sign_event(key, DELETION, order.reason, with_mesh(tags, mesh), self._clock.wall_ns())
            events.append(encode_event(signed))
        erased = 0
        for answer in await self._accept_many(events):
            if isinstance(answer, Declined):
                raise answer.error
            erased += answer.deleted if isinstance(answer, DeletionAccepted) else 0
        return erased


def _audience(row: ContentRow) -> _Audience:
    return row.mesh, () if row.recipient is None else (row.author, row.recipient)


def _is_wanted(row: ContentRow, order: DeletionOrder, relay: str) -> bool:
    if row.is_erased or (row.kind == DELETION and row.author == relay):
        return False
    event = _without_content(row) if row.raw is None else decode_event(row.raw)
    return all(each.matches(event) for each in order.filters)


def _without_content(row: ContentRow) -> Event:
    """Return the remains of an event whose content was erased; filters no longer find it by its other tags."""
    return Event(
        id=row.id,
        pubkey=row.author,
        created_at_ns=row.created_at_ns,
        kind=row.kind,
        tags=(("mesh", row.mesh),),
        content="",
        sig="",
    )
