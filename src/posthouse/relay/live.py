"""Live subscriptions: the fan-out of committed events to the readers whose filters match.

Subscriptions of nodes that may read the same meshes form a section; within it, those with equal filters form a group.
An event is compared only in the sections that may read its mesh, once per group, so filters of outsiders cost nothing.
The events of one commit become one Delivery per group; its frame is assembled once per format, and the same bytes go to
every reader of that format. A reader that may not read an event gets a delivery without it; rights are looked up once
per node. Nothing here waits, stores or knows sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from posthouse.model.filters import Filter
from posthouse.relay.filter_index import FilterIndex
from posthouse.relay.wire.accept_results import Committed
from posthouse.relay.wire.frames import EncodedEvent, SubscriptionFormat

MayRead = Callable[[Committed, str], bool]
#: Return the meshes that a node may read; None: all.
Readable = Callable[[str], frozenset[str] | None]


class Piece(EncodedEvent):
    """One committed event, encoded once."""

    __slots__ = ("committed",)

    def __init__(self, committed: Committed) -> None:
        super().__init__(committed.raw, committed.seq)
        self.committed = committed


class Delivery:
    """The events of one commit for the readers that get the same ones."""

    __slots__ = ("_frames", "pieces", "size")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.size = sum(len(piece.tail) for piece in pieces)
        self._frames: dict[bytes, bytes] = {}

    def frame(self, layout: SubscriptionFormat) -> bytes:
        """Return the bytes for subscriptions of one format."""
        frame = self._frames.get(layout.key)
        if frame is None:
            frame = self._frames[layout.key] = layout.events(self.pieces)
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
    __slots__ = ("filters", "key", "readers", "section")

    def __init__(self, key: Hashable, filters: Sequence[Filter], section: _Section) -> None:
        self.key = key
        self.filters = filters
        self.section = section
        #: by node, because rights are those of a node
        self.readers: dict[str, dict[Reader, None]] = {}


class _Section:
    """The groups of nodes that may read the same meshes."""

    __slots__ = ("groups", "index", "readable")

    def __init__(self, readable: frozenset[str] | None) -> None:
        self.readable = readable
        self.index: FilterIndex[_Group] = FilterIndex()
        self.groups: dict[Hashable, _Group] = {}

    def may_read(self, mesh: str) -> bool:
        return self.readable is None or mesh in self.readable


def _read_all(_node: str) -> frozenset[str] | None:
    return None


class Live:
    """All live subscriptions of a relay."""

    def __init__(self, may_read: MayRead, head: int = 0, readable: Readable = _read_all) -> None:
        self._may_read = may_read
        self._readable = readable
        #: the largest seq that was published; at first the head of the store
        self.head = head
        self._sections: dict[frozenset[str] | None, _Section] = {}
        self._group_of: dict[Reader, _Group] = {}
        self._is_outdated = False
        self._former_comparisons = 0
        self.offered = 0
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._group_of)

    @property
    def comparisons(self) -> int:
        """How often a filter was compared with an event."""
        return self._former_comparisons + sum(section.index.comparisons for section in self._sections.values())

    def note_rights_changed(self, _mesh: str) -> None:
        """Sort subscriptions into sections again before the next commit: their nodes may read other meshes now."""
        self._is_outdated = True

    def add(self, reader: Reader, filters: Sequence[Filter]) -> None:
        """Push events that match one of the filters to `reader`, from the next commit on."""
        self._add(reader, filters, self._readable(reader.node))

    def _add(self, reader: Reader, filters: Sequence[Filter], readable: frozenset[str] | None) -> None:
        section = self._sections.get(readable)
        if section is None:
            section = self._sections[readable] = _Section(readable)
        key = filters_key(filters)
        group = section.groups.get(key)
        if group is None:
            group = section.groups[key] = _Group(key, filters, section)
            section.index.add(filters, group)
        group.readers.setdefault(reader.node, {})[reader] = None
        self._group_of[reader] = group

    def _sort_again(self) -> None:
        self._is_outdated = False
        known: dict[str, frozenset[str] | None] = {}
        for reader, group in list(self._group_of.items()):
            if reader.node not in known:
                known[reader.node] = self._readable(reader.node)
            if known[reader.node] != group.section.readable:
                self.remove(reader)
                self._add(reader, group.filters, known[reader.node])

    def remove(self, reader: Reader) -> None:
        """Push nothing more to `reader`; an unknown reader is not an error."""
        group = self._group_of.pop(reader, None)
        if group is None:
            return
        readers = group.readers[reader.node]
        del readers[reader]
        if not readers:
            del group.readers[reader.node]
        if not group.readers:
            section = group.section
            section.index.remove(group)
            del section.groups[group.key]
            if not section.groups:
                self._former_comparisons += section.index.comparisons
                del self._sections[section.readable]

    def publish(self, batch: Sequence[Committed]) -> None:
        """Push the events of one commit, in order; called in commit order."""
        self.offered += len(batch)
        self.head = max((committed.seq for committed in batch if committed.seq is not None), default=self.head)
        if not self._group_of:
            return
        if self._is_outdated:
            self._sort_again()
        hits: dict[_Group, list[Piece]] = {}
        for committed in batch:
            piece: Piece | None = None
            for section in self._sections.values():
                for group in section.index.matching(committed.event) if section.may_read(committed.mesh) else ():
                    piece = piece or Piece(committed)
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
