"""Tries over subject tokens: who listens to a subject, and which subjects a pattern reaches.

PatternTrie holds patterns and finds those that match a literal subject; LiteralTrie holds literal subjects and finds
those a pattern matches. The cost of a look-up grows with the tokens of what is looked up and the size of the
answer, not with the number of entries. Removing an entry frees every node that only it needed. Answers are in the
order the entries were added. Neither is safe for use from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from posthouse.model.subjects import ONE, REST

V = TypeVar("V")


class _Node(Generic[V]):
    __slots__ = ("children", "entries")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        #: ticket -> value of the entries that end here
        self.entries: dict[int, V] = {}


class _Tokens(Generic[V]):
    """The tree both tries share: entries at the end of token paths, each under a ticket that only grows."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()
        self._paths: dict[int, str] = {}
        self._last_ticket = 0

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: str, value: V) -> int:
        """Add an entry and return the ticket that removes it; the same path may be added many times."""
        self._last_ticket += 1
        self._paths[self._last_ticket] = path
        node = self._root
        for token in path.split("."):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
            node = child
        node.entries[self._last_ticket] = value
        return self._last_ticket

    def remove(self, ticket: int) -> V:
        """Remove the entry of a ticket and return its value; an unknown ticket raises KeyError."""
        tokens = self._paths.pop(ticket).split(".")
        line = [self._root]
        for token in tokens:
            line.append(line[-1].children[token])
        value = line[-1].entries.pop(ticket)
        for parent, token, node in zip(reversed(line[:-1]), reversed(tokens), reversed(line[1:]), strict=True):
            if node.entries or node.children:
                break
            del parent.children[token]
        return value

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield every path with its value, in the order they were added."""
        for ticket, path in self._paths.items():
            yield path, self._find(path).entries[ticket]

    def count_nodes(self) -> int:
        """Return the number of nodes, so that a test can see that removal frees them."""
        waiting, count = [self._root], 0
        while waiting:
            waiting.extend(waiting.pop().children.values())
            count += 1
        return count

    def _find(self, path: str) -> _Node[V]:
        node = self._root
        for token in path.split("."):
            node = node.children[token]
        return node


class PatternTrie(_Tokens[V]):
    """Patterns with values; finds the values whose pattern matches a literal subject."""

    def match(self, subject: str) -> list[V]:
        """Return the values of all patterns that match the subject, in the order they were added."""
        level = [self._root]
        found: dict[int, V] = {}
        for token in subject.split("."):
            below: list[_Node[V]] = []
            for node in level:
                children = node.children
                if (rest := children.get(REST)) is not None:
                    found.update(rest.entries)
                if (child := children.get(token)) is not None:
                    below.append(child)
                if (child := children.get(ONE)) is not None:
                    below.append(child)
            level = below
        for node in level:
            found.update(node.entries)
        return _in_order(found)


class LiteralTrie(_Tokens[V]):
    """Literal subjects with values; finds the values whose subject a pattern matches."""

    def match(self, pattern: str) -> list[V]:
        """Return the values of all subjects the pattern matches, in the order they were added."""
        tokens = pattern.split(".")
        takes_rest = tokens[-1] == REST
        level = [self._root]
        for token in tokens[:-1] if takes_rest else tokens:
            if token == ONE:
                level = [child for node in level for child in node.children.values()]
            else:
                level = [child for node in level if (child := node.children.get(token)) is not None]
        found: dict[int, V] = {}
        for node in _below(level) if takes_rest else level:
            found.update(node.entries)
        return _in_order(found)


def _below(level: list[_Node[V]]) -> Iterator[_Node[V]]:
    waiting = [child for node in level for child in node.children.values()]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children.values())


def _in_order(found: dict[int, V]) -> list[V]:
    if len(found) < 2:
        return list(found.values())
    return [found[ticket] for ticket in sorted(found)]
