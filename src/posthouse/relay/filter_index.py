"""The index of live filters: which filters may match an event, without comparing it with all of them.

A filter is in the buckets of its combined tag, author, mesh and kind, and a bucket finds the filters whose time range
contains a given moment. So a filter that differs from an event in any condition costs nothing. If a filter has several
tags, only one is part of the key: at first the one whose buckets hold the fewest filters. If an event matches the
filter in this tag but not in another one, the filter moves to that other tag. Every candidate is compared with the
event itself: the index may offer too many, never too few.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count, product
from typing import Any, Generic, NamedTuple, TypeVar

from posthouse.model.event import Event
from posthouse.model.filters import Filter
from posthouse.model.limits import INT64_MAX

T = TypeVar("T", bound=Hashable)
_KEYS_MAX = 64  # per filter, if several conditions make them: enough for real filters, little memory for hostile ones
_NO_TAG = (None,)


class _Key(NamedTuple):
    """Conditions that all filters of a bucket share; None: no condition. A filter with ids is found by them alone."""

    id: str | None = None
    author: str | None = None
    kind: int | None = None
    mesh: str | None = None
    tag: tuple[str, str] | None = None


class _Entry(Generic[T]):
    __slots__ = ("filter", "keys", "number", "since_ns", "target", "until_ns")

    def __init__(self, filter: Filter, target: T, number: int) -> None:  # noqa: A002 - the domain's word
        self.filter = filter
        self.target = target
        self.number = number
        self.since_ns = filter.since_ns or 0
        self.until_ns = INT64_MAX if filter.until_ns is None else filter.until_ns
        #: the buckets that hold it
        self.keys: Sequence[_Key] = ()

    @property
    def is_timed(self) -> bool:
        return self.filter.since_ns is not None or self.filter.until_ns is not None

    @property
    def place(self) -> tuple[int, int]:
        """Level and number of the smallest power-of-two interval that contains the time range."""
        level = (self.since_ns ^ self.until_ns).bit_length()
        return level, self.since_ns >> level


class _TimeNode(Generic[T]):
    """Filters whose time ranges all contain one moment; sorted, so an event before or after it finds those it is in."""

    __slots__ = ("_by_since", "_by_until", "_moment_ns")

    def __init__(self, moment_ns: int) -> None:
        self._moment_ns = moment_ns
        #: (bound, number of the entry, entry): numbers are unique, so entries are never compared
        self._by_since: list[tuple[int, int, _Entry[T]]] = []
        self._by_until: list[tuple[int, int, _Entry[T]]] = []

    def __len__(self) -> int:
        return len(self._by_since)

    def add(self, entry: _Entry[T]) -> None:
        insort(self._by_since, (entry.since_ns, entry.number, entry))
        insort(self._by_until, (entry.until_ns, entry.number, entry))

    def remove(self, entry: _Entry[T]) -> None:
        del self._by_since[bisect_left(self._by_since, (entry.since_ns, entry.number))]
        del self._by_until[bisect_left(self._by_until, (entry.until_ns, entry.number))]

    def at(self, at_ns: int) -> list[tuple[int, int, _Entry[T]]]:
        if at_ns < self._moment_ns:
            return self._by_since[: bisect_right(self._by_since, (at_ns, INT64_MAX))]
        return self._by_until[bisect_left(self._by_until, (at_ns, -1)) :]


class _Bucket(Generic[T]):
    """The filters with one key; those with time bounds are the nodes of an interval tree over all times.

    A range belongs to the smallest power-of-two interval that contains it, and so contains its middle.
    """

    __slots__ = ("_size", "_timed", "_untimed")

    def __init__(self) -> None:
        # a dictionary is an ordered set here: the same events reach targets in the same order
        self._untimed: dict[_Entry[T], None] = {}
        #: level (interval of 2 ** level ns) -> number of the interval -> filters
        self._timed: dict[int, dict[int, _TimeNode[T]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, entry: _Entry[T]) -> None:
        self._size += 1
        if not entry.is_timed:
            self._untimed[entry] = None
            return
        level, number = entry.place
        nodes = self._timed.setdefault(level, {})
        node = nodes.get(number)
        if node is None:
            node = nodes[number] = _TimeNode((number << level) + (1 << level >> 1))
        node.add(entry)

    def remove(self, entry: _Entry[T]) -> None:
        self._size -= 1
        if not entry.is_timed:
            del self._untimed[entry]
            return
        level, number = entry.place
        nodes = self._timed[level]
        nodes[number].remove(entry)
        if not nodes[number]:
            del nodes[number]
        if not nodes:
            del self._timed[level]

    def near(self, at_ns: int) -> Iterator[_Entry[T]]:
        """Yield the filters whose time range contains a time."""
        yield from self._untimed
        for level, nodes in self._timed.items():
            node = nodes.get(at_ns >> level)
            if node is not None:
                for _bound, _number, entry in node.at(at_ns):
                    yield entry


class FilterIndex(Generic[T]):
    """Targets by the filters that lead to them."""

    def __init__(self) -> None:
        self._buckets: dict[_Key, _Bucket[T]] = {}
        #: which conditions the keys of the buckets have -> number of such buckets
        self._shapes: Counter[tuple[bool, ...]] = Counter()
        self._entries: dict[T, list[_Entry[T]]] = {}
        self._numbers = count()
        #: how often a filter was compared with an event
        self.comparisons = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, filters: Iterable[Filter], target: T) -> None:
        """Add a target with its filters; it must not be indexed yet."""
        if target in self._entries:
            raise ValueError("the target is already indexed")
        entries = [_Entry(each, target, next(self._numbers)) for each in filters]
        self._entries[target] = entries
        for entry in entries:
            self._link(entry, min(_possible_keys(entry.filter), key=self._crowd))

    def remove(self, target: T) -> None:
        """Remove a target and its filters."""
        for entry in self._entries.pop(target):
            self._unlink(entry)

    def matching(self, event: Event) -> Sequence[T]:
        """Return the targets that have a filter which matches the event, each once."""
        found: dict[T, None] = {}
        misses: dict[_Entry[T], None] = {}
        for key in self._keys_of(event):
            bucket = self._buckets.get(key)
            if bucket is None:
                continue
            for entry in bucket.near(event.created_at_ns):
                if entry.target not in found:
                    self.comparisons += 1
                    if entry.filter.matches(event):
                        found[entry.target] = None
                    elif len(entry.filter.tags) > 1 and entry.filter.ids is None:
                        misses[entry] = None
        for entry in misses:
            self._move(entry, event)
        return list(found)

    def _link(self, entry: _Entry[T], keys: Sequence[_Key]) -> None:
        entry.keys = keys
        for key in keys:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket()
                self._shapes[_shape(key)] += 1
            bucket.add(entry)

    def _unlink(self, entry: _Entry[T]) -> None:
        for key in entry.keys:
            bucket = self._buckets[key]
            bucket.remove(entry)
            if not len(bucket):
                del self._buckets[key]
                self._shapes[_shape(key)] -= 1

    def _move(self, entry: _Entry[T], event: Event) -> None:
        """Index an entry by a tag that an event does not have, so that the next event like it does not find it."""
        for name, values in entry.filter.tags.items():
            if values.isdisjoint(event.values(name)):
                self._unlink(entry)
                self._link(entry, _combine(entry.filter, [(name, value) for value in values]))
                return

    def _crowd(self, keys: Sequence[_Key]) -> int:
        """Return how many filters the fullest of these buckets holds."""
        return max([len(self._buckets.get(key, ())) for key in keys])

    def _keys_of(self, event: Event) -> Iterator[_Key]:
        """Yield the keys of the buckets that an event could be found in."""
        author, kind, mesh = event.pubkey, event.kind, event.mesh
        tags = list(dict.fromkeys((tag[0], tag[1]) for tag in event.tags if len(tag) > 1))
        for (has_id, has_author, has_kind, has_mesh, has_tag), buckets in self._shapes.items():
            if buckets:
                for tag in tags if has_tag else _NO_TAG:
                    yield _Key(
                        event.id if has_id else None,
                        author if has_author else None,
                        kind if has_kind else None,
                        mesh if has_mesh else None,
                        tag,
                    )


def _shape(key: _Key) -> tuple[bool, ...]:
    return tuple([part is not None for part in key])


def _possible_keys(filter: Filter) -> list[list[_Key]]:  # noqa: A002
    """Return the keys under which a filter may be indexed: one list for each of its tags that could be part of them."""
    if filter.ids is not None:
        return [[_Key(id=value) for value in filter.ids]]
    tags: list[Any] = [[(name, value) for value in values] for name, values in filter.tags.items()]
    return [_combine(filter, tag) for tag in tags or [None]]


def _combine(filter: Filter, tag: list[tuple[str, str]] | None) -> list[_Key]:  # noqa: A002
    """Return the combinations of the conditions, the most selective first; skip conditions that would make too many."""
    conditions: dict[str, Sequence[Any]] = {}
    keys = 1
    mesh = None if filter.mesh is None else [filter.mesh]
    for name, values in (("tag", tag), ("author", filter.authors), ("mesh", mesh), ("kind", filter.kinds)):
        if values is not None and (keys == 1 or keys * len(values) <= max(keys, _KEYS_MAX)):
            conditions[name] = list(values)
            keys *= len(values)
    return [_Key(**dict(zip(conditions, values, strict=True))) for values in product(*conditions.values())]


def count_keys(filter: Filter) -> int:  # noqa: A002
    """Return how many entries a filter makes in the index, at most."""
    return max([len(keys) for keys in _possible_keys(filter)])
