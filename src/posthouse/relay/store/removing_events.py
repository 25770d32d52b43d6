"""Removing the content of events: the rules that all stores share, over the few statements in which they differ.

Content is removed because it expired, because a limit of its mesh sweeps it, because an archive provably holds it, or
because a deletion names it. The row stays without its JSON, so that its id is known and the same signed bytes are never
accepted twice, until events of that age are refused anyway. Rows that are derived from the content are removed with it,
and the usage of the mesh shrinks. Limits remove nothing that is current or that a delivery needs. After expired or
archived content the next larger event of an address becomes current; an erased event keeps its place, so that a
deletion never makes an older version current. A content.erased record names every erased event, even one whose content
was gone already: the lake may still hold it. Part of Unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from posthouse.journal.append import JournalAppender
from posthouse.journal.digest import content_digest
from posthouse.journal.records import ERASED_PER_RECORD
from posthouse.model.event import decode_event
from posthouse.model.limits import SECOND_NS
from posthouse.model.mesh_limits import MeshLimits
from posthouse.relay.store.closing_deliveries import ClosingDeliveries, Found
from posthouse.relay.store.event_rows import (
    ContentRow,
    ErasedEvents,
    Released,
    SweptEvents,
    Tombstones,
    Usage,
    event_terms,
    mesh_term,
)
from posthouse.relay.wire.delivery_rows import ClosedDeliveries

_OLDEST_MOST = 2_000  # events of a full mesh that one new event checks to find some that nothing needs
#: seq of an emptied row, and the digest that stays
Emptied = tuple[int, bytes | None]


class RemovingEvents(ABC):
    """Removes the content of events in the transaction that is open."""

    _journal: JournalAppender
    deliveries: ClosingDeliveries

    def sweep_expired(self, now_ns: int, limit: int) -> int:
        rows = self.find_contents_of(self._expired(now_ns // SECOND_NS, limit))
        if rows:
            self.deliveries.expire_events([row.seq for row in rows])
            self._remove(rows)
        return len(rows)

    def release_kept(self, after_seq: int, horizon_ns: int, limit: int) -> Released:
        checked, through_seq = self._kept_through(after_seq, limit)
        if through_seq is None:
            return Released(0, 0, None)
        return Released(self._archive(self._releasable(after_seq, through_seq, horizon_ns)), checked, through_seq)

    def _archive(self, seqs: Sequence[int]) -> int:
        """Remove content that the archive holds; return how many events lost it."""
        if seqs:
            self._remove(self.find_contents_of(seqs))
            self.deliveries.archive(seqs)
        return len(seqs)

    def erase(self, rows: Iterable[ContentRow], actor: str, reason: str) -> list[ClosedDeliveries]:
        """Erase events, end their deliveries as purged, and record both; return the deliveries that ended."""
        fresh = {row.seq: row for row in rows if not row.is_erased}
        by_mesh = sorted(fresh.values(), key=lambda row: (row.mesh, row.seq))
        seqs = sorted(fresh)
        for mesh, found in groupby(by_mesh, attrgetter("mesh")):
            of_mesh = list(found)
            for first in range(0, len(of_mesh), ERASED_PER_RECORD):
                self._record_erased(mesh, actor, reason, of_mesh[first : first + ERASED_PER_RECORD])
        self._remove(by_mesh, keeps_digest=True, is_erased=True)
        return self.deliveries.purge_events(seqs, actor) if seqs else []

    def finish_deletions(self, limit: int) -> int:
        """Erase up to `limit` versions of a deleted address that has more than a deletion erases; return how many."""
        pending = self._pending_address()
        if pending is None:
            return 0
        address, through_ns = pending
        rows = self.find_versions(address, through_ns, limit)
        if len(rows) < limit:
            self._finish_address(address)
        if rows:
            self.erase(rows, rows[0].author, "deleted")
        return len(rows)

    def drop_oldest(self, mesh: str, excess: Usage) -> Usage:
        """Remove the oldest events of a mesh that nothing needs until there is room; nothing if they do not suffice."""
        seqs, events, size = [], 0, 0
        for seq, bytes_ in self._oldest_unneeded(mesh_term(mesh), _OLDEST_MOST):
            if events >= excess.events and size >= excess.bytes:
                break
            seqs.append(seq)
            events, size = events + 1, size + bytes_
        if events < excess.events or size < excess.bytes:
            return Usage(0, 0)
        self._sweep(mesh, seqs, "drop_oldest")
        return Usage(events, size)

    def sweep_mesh(self, mesh: str, limits: MeshLimits, now_ns: int, after_seq: int, limit: int) -> SweptEvents:
        """Apply limits of age and versions to the next `limit` events of a mesh.

        `now_ns` is read from the clock: the journal's time stays ahead after the clock was ahead once.
        """
        page = self._events_of_mesh(mesh_term(mesh), after_seq, limit, limits.versions or 0)
        too_old, too_many = [], []
        for seq, kind, created_at_ns, newer in page:
            max_age_ns = limits.max_age_ns(kind)
            if max_age_ns is not None and created_at_ns < now_ns - max_age_ns:
                too_old.append(seq)
            elif limits.versions is not None and newer >= limits.versions:
                too_many.append(seq)
        removed = self._sweep(mesh, self._unneeded_among(too_old), "age")
        removed += self._sweep(mesh, self._unneeded_among(too_many), "versions")
        return SweptEvents(removed, page[-1][0] if len(page) == limit else None)

    def erase_mesh_step(self, limit: int) -> ErasedEvents | None:
        """Erase a part of a deleted mesh; None if no mesh is left to erase."""
        pending = self._pending_mesh()
        if pending is None:
            return None
        mesh, actor, after_seq = pending
        through_seq = min(after_seq + limit, self._journal.head)
        rows = self.find_contents_of(self._seqs_of_mesh(mesh, after_seq, through_seq))
        self._note_mesh_erased(mesh, through_seq, is_done=through_seq == self._journal.head)
        return ErasedEvents(len(rows), self.erase(rows, actor, "admin: mesh deleted"))

    def forget_ids(self, after_seq: int, before_ns: int, limit: int) -> int | None:
        """Forget removed events that were created before a time; return where to continue, None at the end."""
        page = self._known_events(after_seq, limit)
        self._forget([seq for seq, at_ns, is_forgettable in page if is_forgettable and at_ns < before_ns])
        if len(page) < limit or all(at_ns >= before_ns for _seq, at_ns, _is in page):
            self._forget_tombstones(before_ns)
            return None
        return int(page[-1][0])

    def _sweep(self, mesh: str, seqs: Sequence[int], reason: str) -> int:
        """Remove content that a limit takes, and record it; return how many events lost it."""
        for first in range(0, len(seqs), ERASED_PER_RECORD):
            rows = self.find_contents_of(seqs[first : first + ERASED_PER_RECORD])
            digests = [content_digest(row.raw or b"").hex() for row in rows]
            body = {"seqs": [row.seq for row in rows], "digests": digests, "reason": reason}
            self._journal.append("content.swept", mesh=mesh, ref="events", body=body)
            self.deliveries.prune_records([row.seq for row in rows])
            self._remove(rows, keeps_digest=True)
        return len(seqs)

    def _record_erased(self, mesh: str, actor: str, reason: str, rows: Sequence[ContentRow]) -> None:
        digests = [_digest_of(row) for row in rows]
        body = {
            "seqs": [row.seq for row in rows],
            "ids": [row.id for row in rows],
            "digests": [None if digest is None else digest.hex() for digest in digests],
            "reason": reason,
        }
        self._journal.append("content.erased", mesh=mesh, actor=actor, ref="events", body=body)

    def _remove(self, rows: Sequence[ContentRow], *, keeps_digest: bool = False, is_erased: bool = False) -> None:
        """Empty rows, and delete everything that was derived from their content."""
        if not rows:
            return
        present = [row for row in rows if row.raw is not None]
        self._remove_terms([(term, row.seq) for row in present for term in _terms_of(row)])
        self._empty([(row.seq, _digest_of(row) if keeps_digest else row.digest) for row in rows], is_erased=is_erased)
        self._count_removed([(row.mesh, -1, -len(row.raw or b"")) for row in present])
        seqs = [row.seq for row in present]
        self._remove_fenced(seqs)
        self._forget_kept(seqs)
        if not is_erased:
            self._pass_on_current([(row.address, row.seq) for row in present if row.address is not None])

    # the statements of a store

    @abstractmethod
    def find_contents(self, ids: Sequence[str]) -> list[ContentRow]: ...

    @abstractmethod
    def find_contents_of(self, seqs: Sequence[int]) -> list[ContentRow]:
        """Return the rows of these seqs."""

    @abstractmethod
    def find_versions(self, address: bytes, through_ns: int, limit: int) -> list[ContentRow]: ...

    @abstractmethod
    def find_tombstones(self, ids: Sequence[str], addresses: Collection[bytes]) -> Tombstones: ...

    @abstractmethod
    def block_ids(self, ids: Sequence[str], author: str, created_at_ns: int) -> None: ...

    @abstractmethod
    def delete_address(self, address: bytes, through_ns: int, *, is_pending: bool) -> None: ...

    @abstractmethod
    def _pending_address(self) -> tuple[bytes, int] | None:
        """Return an address with versions that are still to be erased, and up to when they were created."""

    @abstractmethod
    def _finish_address(self, address: bytes) -> None: ...

    @abstractmethod
    def _count_removed(self, changes: Sequence[tuple[str, int, int]]) -> None:
        """Change the usage of meshes by (mesh, events, bytes); all of them are negative."""

    @abstractmethod
    def _oldest_unneeded(self, term: bytes, limit: int) -> Found:
        """Return (seq, bytes) of those among the oldest `limit` events of a mesh that nothing needs."""

    @abstractmethod
    def _events_of_mesh(self, term: bytes, after_seq: int, limit: int, versions: int) -> Found:
        """Return (seq, kind, created_at_ns, number of newer versions) of a mesh's events; it counts to `versions`."""

    @abstractmethod
    def _unneeded_among(self, seqs: Sequence[int]) -> list[int]: ...

    @abstractmethod
    def _pending_mesh(self) -> tuple[str, str, int] | None:
        """Return a deleted mesh with events to erase, who deleted it, and up to which seq it is erased."""

    @abstractmethod
    def _seqs_of_mesh(self, mesh: str, low: int, high: int) -> list[int]:
        """Return the events of a mesh in a range that are not erased."""

    @abstractmethod
    def _note_mesh_erased(self, mesh: str, through_seq: int, *, is_done: bool) -> None: ...

    @abstractmethod
    def _known_events(self, after_seq: int, limit: int) -> Found:
        """Return (seq, created_at_ns, whether nothing refers to it) of the next events."""

    @abstractmethod
    def _forget(self, seqs: Sequence[int]) -> None: ...

    @abstractmethod
    def _forget_tombstones(self, before_ns: int) -> None: ...

    @abstractmethod
    def _expired(self, now_s: int, limit: int) -> list[int]: ...

    @abstractmethod
    def _kept_through(self, after_seq: int, limit: int) -> tuple[int, int | None]:
        """Return how many of the next kept events there are, and the seq of the last of them."""

    @abstractmethod
    def _releasable(self, low: int, high: int, horizon_ns: int) -> list[int]: ...

    @abstractmethod
    def _remove_terms(self, terms: Sequence[tuple[bytes, int]]) -> None: ...

    @abstractmethod
    def _empty(self, rows: Sequence[Emptied], *, is_erased: bool) -> None: ...

    @abstractmethod
    def _pass_on_current(self, rows: Sequence[tuple[bytes, int]]) -> None:
        """Make the next larger event of each address current, given as (address, seq of the event that is gone)."""

    @abstractmethod
    def _remove_fenced(self, seqs: Sequence[int]) -> None: ...

    @abstractmethod
    def _forget_kept(self, seqs: Sequence[int]) -> None: ...


def sum_usage(changes: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return changes of usage, one for each mesh."""
    sums: dict[str, tuple[int, int]] = {}
    for mesh, events, bytes_ in changes:
        before = sums.get(mesh, (0, 0))
        sums[mesh] = before[0] + events, before[1] + bytes_
    return [(mesh, *total) for mesh, total in sums.items()]


def _terms_of(row: ContentRow) -> tuple[bytes, ...]:
    assert row.raw is not None
    return event_terms(decode_event(row.raw), row.mesh, row.address)


def _digest_of(row: ContentRow) -> bytes | None:
    return row.digest if row.raw is None else content_digest(row.raw)
