"""The index of live filters: which filters could match an event, found without trying all of them.

A filter stands in the buckets of its narrowest condition (ids, then a tag, authors, kinds, mesh), or among those
that have none. An event looks only into the buckets of its own values, and what is found there is compared in full.
So the cost of an event grows with the filters that nearly match it, not with those that exist.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from posthouse.model.event import Event
from posthouse.model.filters import Filter

T = TypeVar("T", bound=Hashable)
_Bucket = tuple[str, Hashable]
_EVERY: _Bucket = ("every", None)


class _Entry(Generic[T]):
    __slots__ = ("filter", "target")

    def __init__(self, filter: Filter, target: T) -> None:  # noqa: A002 - the domain's word
        self.filter = filter
        self.target = target


class FilterIndex(Generic[T]):
    """Targets by the filters that lead to them."""

    def __init__(self) -> None:
        # dictionaries as sets that keep their order, so that the same events reach targets in the same order
        self._buckets: dict[_Bucket, dict[_Entry[T], None]] = {}
        self._entries: dict[T, list[_Entry[T]]] = {}
        #: how often a filter was compared with an event
        self.comparisons = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, filters: Iterable[Filter], target: T) -> None:
        """Let each of the filters lead to `target`, which must not be there yet."""
        if target in self._entries:
            raise ValueError("the target is indexed already")
        entries = [_Entry(each, target) for each in filters]
        self._entries[target] = entries
        for entry in entries:
            for bucket in buckets_of(entry.filter):
                self._buckets.setdefault(bucket, {})[entry] = None

    def remove(self, target: T) -> None:
        """Forget a target and its filters."""
        for entry in self._entries.pop(target):
            for bucket in buckets_of(entry.filter):
                members = self._buckets[bucket]
                del members[entry]
                if not members:
                    del self._buckets[bucket]

    def matching(self, event: Event) -> Sequence[T]:
        """Return every target that has a filter matching the event, once."""
        found: dict[T, None] = {}
        for bucket in _looked_up(event):
            for entry in self._buckets.get(bucket, ()):
                if entry.target not in found:
                    self.comparisons += 1
                    if entry.filter.matches(event):
                        found[entry.target] = None
        return list(found)


def buckets_of(filter: Filter) -> list[_Bucket]:  # noqa: A002
    """Return where a filter stands: one bucket for each value of its narrowest condition."""
    if filter.ids is not None:
        return [("id", value) for value in filter.ids]
    if filter.tags:
        name, values = min(filter.tags.items(), key=lambda item: len(item[1]))
        return [("tag", (name, value)) for value in values]
    if filter.authors is not None:
        return [("author", value) for value in filter.authors]
    if filter.kinds is not None:
        return [("kind", value) for value in filter.kinds]
    return [_EVERY if filter.mesh is None else ("mesh", filter.mesh)]


def _looked_up(event: Event) -> list[_Bucket]:
    fixed: list[_Bucket] = [
        ("id", event.id),
        ("author", event.pubkey),
        ("kind", event.kind),
        ("mesh", event.mesh),
        _EVERY,
    ]
    tags: set[_Bucket] = {("tag", (tag[0], tag[1])) for tag in event.tags if len(tag) > 1}
    return fixed + list(tags)
