"""Live subscriptions: the fan-out of committed events to the readers whose filters match.

Subscriptions with equal filters form a group, so an event is compared once per group. The events of one commit
become one Delivery per group; its frame is assembled once per subscription id, and the same bytes go to every reader.
A reader that may not read an event gets a delivery without it; rights are looked up once per node. Nothing here
waits, stores or knows sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from posthouse.model.filters import Filter
from posthouse.relay.filter_index import FilterIndex
from posthouse.relay.wire.accept_results import Committed
from posthouse.relay.wire.frames import event_tail, events_text, text_frame

MayRead = Callable[[Committed, str], bool]


class Piece:
    """One committed event and the end of its EVENT command, encoded once."""

    __slots__ = ("committed", "tail")

    def __init__(self, committed: Committed) -> None:
        self.committed = committed
        self.tail = event_tail(committed.raw, committed.seq)


class Delivery:
    """The events of one commit for the readers that get the same ones."""

    __slots__ = ("_frames", "pieces", "size")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.size = sum(len(piece.tail) for piece in pieces)
        self._frames: dict[bytes, bytes] = {}

    def frame(self, prefix: bytes) -> bytes:
        """Return the frame for subscriptions whose EVENT commands start with `prefix`."""
        frame = self._frames.get(prefix)
        if frame is None:
            frame = text_frame(events_text(prefix, [piece.tail for piece in self.pieces]))
            self._frames[prefix] = frame
        return frame

    def last_seq(self) -> int | None:
        """Return the largest seq, or None if all events are ephemeral."""
        return next((p.committed.seq for p in reversed(self.pieces) if p.committed.seq is not None), None)

    def after(self, seq: int) -> Delivery | None:
        """Return the delivery without stored events up to `seq`, or None if nothing is left."""
        kept = [p for p in self.pieces if p.committed.seq is None or p.committed.seq > seq]
        if len(kept) == len(self.pieces):
            return self
        return Delivery(kept) if kept else None


class Reader(Protocol):
    """A live subscription."""

    @property
    def node(self) -> str: ...

    def push(self, delivery: Delivery) -> None:
        """Send the events of one commit, without waiting."""
        ...


class _Group:
    __slots__ = ("key", "readers")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        #: by node, because rights are those of a node
        self.readers: dict[str, dict[Reader, None]] = {}


class Live:
    """All live subscriptions of a relay."""

    def __init__(self, may_read: MayRead, head: int = 0) -> None:
        self._may_read = may_read
        #: the largest seq that was published; at first the head of the store
        self.head = head
        self._index: FilterIndex[_Group] = FilterIndex()
        self._groups: dict[Hashable, _Group] = {}
        self._group_of: dict[Reader, _Group] = {}
        self.offered = 0
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._group_of)

    @property
    def comparisons(self) -> int:
        """How often a filter was compared with an event."""
        return self._index.comparisons

    def add(self, reader: Reader, filters: Sequence[Filter]) -> None:
        """Push events that match one of the filters to `reader`, from the next commit on."""
        key = filters_key(filters)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
            self._index.add(filters, group)
        group.readers.setdefault(reader.node, {})[reader] = None
        self._group_of[reader] = group

    def remove(self, reader: Reader) -> None:
        """Push nothing more to `reader`; an unknown reader is no error."""
        group = self._group_of.pop(reader, None)
        if group is None:
            return
        readers = group.readers[reader.node]
        del readers[reader]
        if not readers:
            del group.readers[reader.node]
        if not group.readers:
            self._index.remove(group)
            del self._groups[group.key]

    def publish(self, batch: Sequence[Committed]) -> None:
        """Push the events of one commit, in order; called in commit order."""
        self.offered += len(batch)
        self.head = max((committed.seq for committed in batch if committed.seq is not None), default=self.head)
        if not self._group_of:
            return
        hits: dict[_Group, list[Piece]] = {}
        for committed in batch:
            groups = self._index.matching(committed.event)
            if groups:
                piece = Piece(committed)
                for group in groups:
                    hits.setdefault(group, []).append(piece)
        rights = _Rights(self._may_read)
        for group, pieces in hits.items():
            self._push(group, Delivery(pieces), rights)

    def _push(self, group: _Group, whole: Delivery, rights: _Rights) -> None:
        open_events = {p.committed.mesh: p.committed for p in whole.pieces if p.committed.recipient is None}
        has_private = any(p.committed.recipient is not None for p in whole.pieces)
        for node, readers in list(group.readers.items()):
            delivery: Delivery | None = whole
            if has_private or not all(rights.may_read(event, node) for event in open_events.values()):
                delivery = _readable(whole, node, rights)
            if delivery is not None:
                self.delivered += len(delivery.pieces) * len(readers)
                for reader in list(readers):
                    reader.push(delivery)


class _Rights:
    """Rights to read, looked up once per commit for each node and mesh."""

    __slots__ = ("_known", "_may_read")

    def __init__(self, may_read: MayRead) -> None:
        self._may_read = may_read
        self._known: dict[tuple[str, str], bool] = {}

    def may_read(self, committed: Committed, node: str) -> bool:
        if committed.recipient is not None:
            return self._may_read(committed, node)
        key = (node, committed.mesh)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._may_read(committed, node)
        return known


def _readable(whole: Delivery, node: str, rights: _Rights) -> Delivery | None:
    pieces = [piece for piece in whole.pieces if rights.may_read(piece.committed, node)]
    if len(pieces) == len(whole.pieces):
        return whole
    return Delivery(pieces) if pieces else None


def filters_key(filters: Sequence[Filter]) -> Hashable:
    """Return a key that is equal for filters with the same conditions."""
    return frozenset(
        (f.ids, f.authors, f.kinds, frozenset(f.tags.items()), f.mesh, f.since_ns, f.until_ns) for f in filters
    )
