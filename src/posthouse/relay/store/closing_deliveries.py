"""Closing and reopening deliveries: the rules that all stores share, over the few statements in which they differ.

Every method changes rows, the counters of their queue and the journal together. A subclass reads and writes the rows;
message ids are hexadecimal text here. Part of DeliveryUnit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from posthouse.journal.append import JournalAppender
from posthouse.relay.wire.delivery_rows import (
    NO_DELIVERIES,
    OPEN,
    PARKED,
    AttemptBounds,
    ClosedDeliveries,
    DeliveryRow,
    SweptRecords,
    with_via,
)

#: rows of one queue as (seq, id, ...)
Found = Sequence[Sequence[Any]]


class ClosingDeliveries(ABC):
    """Ends and reopens deliveries in the transaction that is open."""

    def __init__(self, tx: JournalAppender) -> None:
        self._journal = tx

    def reject(
        self, mesh: str, node: str, message_id: str, reason: str, before_ns: int
    ) -> tuple[str, ClosedDeliveries]:
        queue_id = self._queue_id(mesh, node)
        found = [] if queue_id is None else self.rows(queue_id, [message_id])
        if queue_id is None or not found:
            return "", NO_DELIVERIES
        row = found[0]
        if row.state not in OPEN:
            return row.state, NO_DELIVERIES
        if row.opened_at_ns < before_ns:
            return "expired", NO_DELIVERIES
        self._close(queue_id, "rejected", [row.seq], reason, parked=1)
        self._journal.append("delivery.rejected", mesh=mesh, actor=node, ref=message_id, body={"reason": reason})
        return "rejected", ClosedDeliveries(mesh, node, [row.seq], "rejected")

    def count_attempts(
        self, mesh: str, node: str, seqs: Sequence[int], bounds: AttemptBounds, *, is_timeout: bool
    ) -> ClosedDeliveries:
        spent = self._count(self._queue_id(mesh, node), seqs, bounds, is_timeout=is_timeout)
        return self.park(mesh, node, spent, "confirm_timeout" if is_timeout else "connection_lost")

    def park(self, mesh: str, node: str, rows: Found, reason: str) -> ClosedDeliveries:
        """Make open deliveries dead letters; a row is (seq, id, sends)."""
        queue_id = self._queue_id(mesh, node)
        if queue_id is None or not rows:
            return NO_DELIVERIES
        seqs = [row[0] for row in rows]
        self._close(queue_id, "dead", seqs, reason, parked=len(rows))
        for _seq, id_, sends in rows:
            body = {"attempts": sends, "reason": reason}
            self._journal.append("delivery.dead", mesh=mesh, actor=node, ref=id_, body=body)
        return ClosedDeliveries(mesh, node, seqs, "dead")

    def expire(self, mesh: str, node: str, before_ns: int, limit: int) -> ClosedDeliveries:
        queue_id = self._queue_id(mesh, node)
        if queue_id is None:
            return NO_DELIVERIES
        return self._end(queue_id, mesh, node, "expired", self._expired(queue_id, before_ns, limit), {})

    def expire_events(self, seqs: Sequence[int]) -> None:
        """Close the open deliveries of messages that have expired, and mark their dedupe records."""
        for (queue_id, mesh, node), found in self._unfinished_by_queue(seqs).items():
            opened = [(seq, id_) for seq, id_, state in found if state in OPEN]
            self._end(queue_id, mesh, node, "expired", opened, {})
        self.prune_records(seqs)

    def purge_events(self, seqs: Sequence[int], actor: str) -> list[ClosedDeliveries]:
        """End the unfinished deliveries of events that are erased; their dedupe records stay, marked."""
        self._drop_waiting(seqs)
        self.prune_records(seqs)
        by_queue = self._unfinished_by_queue(seqs).items()
        return [self._purge(*queue, actor, found, None) for queue, found in by_queue]

    def _unfinished_by_queue(self, seqs: Sequence[int]) -> dict[tuple[int, str, str], list[tuple[int, str, str]]]:
        """Return (seq, id, state) of the unfinished deliveries of events, by queue id, mesh and node."""
        by_queue: dict[tuple[int, str, str], list[tuple[int, str, str]]] = {}
        for queue_id, mesh, node, *row in self._unfinished_of_events(seqs):
            seq, id_, state = row
            by_queue.setdefault((queue_id, mesh, node), []).append((seq, id_, state))
        return by_queue

    def block(self, mesh: str, node: str, sender: str) -> ClosedDeliveries:
        queue_id, from_ = self._queue_id(mesh, node), self._queue_id(mesh, sender)
        if queue_id is None or from_ is None:
            return NO_DELIVERIES
        return self._end(queue_id, mesh, node, "blocked", self._of_sender(queue_id, from_), {"sender": sender})

    def purge(
        self,
        mesh: str,
        node: str,
        actor: str,
        ids: Sequence[str] | None,
        states: Sequence[str],
        limit: int,
        via: str | None = None,
    ) -> tuple[list[str], ClosedDeliveries]:
        queue_id = self._queue_id(mesh, node)
        found = [] if queue_id is None else self._purgeable(queue_id, ids, states, limit)
        if queue_id is None or not found:
            return [], NO_DELIVERIES
        return [row[1] for row in found], self._purge(queue_id, mesh, node, actor, found, via)

    def _purge(
        self, queue_id: int, mesh: str, node: str, actor: str, found: Found, via: str | None
    ) -> ClosedDeliveries:
        """End deliveries of one queue as purged; a row is (seq, id, state)."""
        seqs = [row[0] for row in found]
        parked = sum(row[2] in PARKED for row in found)
        self._set_state(queue_id, "purged", seqs, None)
        self._shrink(queue_id, len(found) - parked, -parked)
        body = with_via({"ids": [row[1] for row in found], "recipient": node}, via)
        self._journal.append("delivery.purged", mesh=mesh, actor=actor, ref=node, body=body)
        return ClosedDeliveries(mesh, node, seqs, "purged")

    def requeue(
        self,
        mesh: str,
        node: str,
        actor: str,
        ids: Sequence[str] | None,
        queue_max: int,
        limit: int,
        via: str | None = None,
    ) -> tuple[list[str], list[str]]:
        queue_id = self._queue_id(mesh, node)
        found = [] if queue_id is None else self._purgeable(queue_id, ids, sorted(PARKED), limit)
        if queue_id is None or not found:
            return [], []
        room = max(0, queue_max - self._open_rows(queue_id))
        for seq, id_, state in found[:room]:
            body = with_via({"recipient": node, "from_state": state}, via)
            position = self._journal.append("delivery.requeued", mesh=mesh, actor=actor, ref=id_, body=body)
            self._reopen(queue_id, seq, position)
        reopened = [row[1] for row in found[:room]]
        self._shrink(queue_id, -len(reopened), -len(reopened))
        return reopened, [row[1] for row in found[room:]]

    def sweep_records(self, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
        rows = self._next_records(after_seq, limit)
        lasting = [seq for seq, _at, _needed in takewhile(lambda row: row[1] is None, rows)]
        ended = list(takewhile(lambda row: row[1] is None or row[1] < before_ns, rows))
        over = [seq for seq, expires_at_ns, is_needed in ended if expires_at_ns is not None and not is_needed]
        if over:
            self._delete_records(over)
        has_more = ended and len(ended) == len(rows)
        return SweptRecords(lasting[-1] if lasting else after_seq, ended[-1][0] if has_more else None)

    def note_read(self, mesh: str, node: str, seqs: Sequence[int]) -> ClosedDeliveries:
        queue_id = self._queue_id(mesh, node)
        found = self._open_among(queue_id, seqs)
        if queue_id is None or not found:
            return NO_DELIVERIES
        read, ids, was_stored = map(list, zip(*found, strict=True))
        self.confirm(queue_id, read, len(read), 0)
        body = {"ids": ids, "was_stored": was_stored, "confirmation": ""}
        self._journal.append("delivery.confirmed", mesh=mesh, actor=node, ref=node, body=body)
        return ClosedDeliveries(mesh, node, read, "confirmed")

    def _drop_excess(self, queue_id: int, excess: int, newest: int) -> None:
        """Drop the oldest confirmations until `excess` ids are gone, but never the newest one."""
        while excess > 0:
            excess -= self._drop_oldest(queue_id, excess, newest)

    def _drop_oldest(self, queue_id: int, excess: int, newest: int) -> int:
        dropped, through = 0, 0
        for seq, ids in self._oldest_confirmations(queue_id):
            if dropped >= excess or seq == newest:
                break
            dropped, through = dropped + ids, seq
        self._drop_through(queue_id, through)
        return dropped or excess

    def _end(
        self, queue_id: int, mesh: str, node: str, state: str, found: Found, fields: dict[str, str]
    ) -> ClosedDeliveries:
        if not found:
            return NO_DELIVERIES
        seqs = [seq for seq, _id in found]
        self._close(queue_id, state, seqs, None)
        body = {"ids": [id_ for _seq, id_ in found]} | fields
        self._journal.append(f"delivery.{state}", mesh=mesh, actor=node, ref=node, body=body)
        return ClosedDeliveries(mesh, node, seqs, state)

    def _close(self, queue_id: int, state: str, seqs: Sequence[int], reason: str | None, parked: int = 0) -> None:
        self._set_state(queue_id, state, seqs, reason)
        self._shrink(queue_id, len(seqs), parked)

    # the statements of a store

    @abstractmethod
    def rows(self, queue_id: int, ids: Sequence[str]) -> list[DeliveryRow]: ...

    @abstractmethod
    def confirm(self, queue_id: int, seqs: Sequence[int], opened: int, parked: int) -> None: ...

    @abstractmethod
    def prune_records(self, seqs: Sequence[int]) -> None:
        """Mark dedupe records of messages whose content is gone."""

    @abstractmethod
    def _queue_id(self, mesh: str, node: str) -> int | None: ...

    @abstractmethod
    def _set_state(self, queue_id: int, state: str, seqs: Sequence[int], reason: str | None) -> None: ...

    @abstractmethod
    def _shrink(self, queue_id: int, opened: int, parked: int) -> None:
        """Take `opened` from the open rows of a queue and add `parked` to its dead letters."""

    @abstractmethod
    def _count(self, queue_id: int | None, seqs: Sequence[int], bounds: AttemptBounds, *, is_timeout: bool) -> Found:
        """Count an attempt of each row; return (seq, id, sends) of those that have none left."""

    @abstractmethod
    def _expired(self, queue_id: int, before_ns: int, limit: int) -> Found: ...

    @abstractmethod
    def archive(self, seqs: Sequence[int]) -> None:
        """Delete the ended deliveries of messages whose content is gone; their dedupe records stay, marked."""

    @abstractmethod
    def _unfinished_of_events(self, seqs: Sequence[int]) -> Found:
        """Return (queue id, mesh, node, seq, id, state) of every open or parked delivery of these messages."""

    @abstractmethod
    def _of_sender(self, queue_id: int, from_: int) -> Found: ...

    @abstractmethod
    def _purgeable(self, queue_id: int, ids: Sequence[str] | None, states: Sequence[str], limit: int) -> Found:
        """Return (seq, id, state) of rows in these states, of the given ids or of all."""

    @abstractmethod
    def _open_rows(self, queue_id: int) -> int: ...

    @abstractmethod
    def _reopen(self, queue_id: int, seq: int, position: int) -> None: ...

    @abstractmethod
    def _next_records(self, after_seq: int, limit: int) -> Found:
        """Return (seq, expires_at_ns, is_needed) of the dedupe records after a seq."""

    @abstractmethod
    def _delete_records(self, seqs: Sequence[int]) -> None: ...

    @abstractmethod
    def _open_among(self, queue_id: int | None, seqs: Sequence[int]) -> Found:
        """Return (seq, id, was_stored) of the open rows among these."""

    @abstractmethod
    def _oldest_confirmations(self, queue_id: int) -> Found: ...

    @abstractmethod
    def _drop_through(self, queue_id: int, seq: int) -> None: ...

    @abstractmethod
    def _drop_waiting(self, seqs: Sequence[int]) -> None:
        """Drop confirmations and receipts that wait for their sender and are erased."""
