"""Subjects and patterns, the names of endpoints and topics: validation, matching, and tries over many of them.

A subject is a list of tokens joined by dots; a pattern may also contain `*` (exactly one token) and, as its last token,
`>` (one or more). Invalid text is refused, never repaired. PatternTrie finds the patterns that match a subject,
LiteralTrie the subjects that a pattern matches: the cost grows with the number of tokens and the size of the result,
not with the number of entries; results are in insertion order; removing an entry frees its nodes. Tries are not
thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Generic, TypeVar

from posthouse.model.errors import error
from posthouse.model.limits import SUBJECT_MAX_BYTES, SUBJECT_MAX_TOKENS, TOPIC_MAX_BYTES, TOPIC_MAX_TOKENS

ONE = "*"
REST = ">"
REPLIES = "_reply."  # how the subjects of replies to requests begin
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
#: the forms of a topic and of a subject that may have wildcards, as patterns for JSON Schema
TOPIC_FORM = rf"{_TOKEN.pattern}(\.{_TOKEN.pattern}){{0,{TOPIC_MAX_TOKENS - 1}}}"
PATTERN_FORM = rf"(({_TOKEN.pattern}|\*)\.){{0,{SUBJECT_MAX_TOKENS - 1}}}({_TOKEN.pattern}|\*|>)"
_MESH_ANSWER = re.compile(r"mesh\.[A-Za-z0-9_-]+\.out\.answer\.[0-9a-f]{64}")


def validate_subject(subject: str, allow_wildcards: bool = False) -> str:
    """Return the subject unchanged, or raise subject_invalid with the reason."""
    if type(subject) is not str:
        reason: str | None = "it is not a string"
    elif len(subject) > SUBJECT_MAX_BYTES:  # before the cache, which must not store long texts
        reason = f"it is longer than {SUBJECT_MAX_BYTES} bytes"
    else:
        reason = _fault(subject, allow_wildcards)
    if reason is not None:
        raise error("subject_invalid", subject=subject, reason=reason)
    return subject


def validate_topic(topic: str) -> str:
    """Return the topic unchanged, or raise topic_invalid: a shorter subject without wildcards."""
    reason = _topic_fault(topic)
    if reason is not None:
        raise error("topic_invalid", topic=topic, reason=reason)
    return topic


def mesh_answer_subject(mesh: str, message_id: str) -> str:
    """Return the bus subject to which answers to a request from another host are published."""
    return f"mesh.{mesh}.out.answer.{message_id}"


def takes_answers(reply_to: str) -> bool:
    """Return True if a request waits at a reply_to: a last token may say that a reply is partial, failed or busy."""
    return reply_to.startswith(REPLIES) or _MESH_ANSWER.fullmatch(reply_to) is not None


def is_pattern(subject: str) -> bool:
    """Return True if a valid subject contains a wildcard."""
    return ONE in subject or REST in subject


def matches(subject: str, pattern: str) -> bool:
    """Return True if a pattern matches a literal subject; both must be valid, neither is checked."""
    if subject == pattern:
        return True
    tokens = subject.split(".")
    wanted = pattern.split(".")
    if wanted[-1] == REST:
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    return all(want in (ONE, token) for token, want in zip(tokens, wanted, strict=False))


def prefixes(subject: str) -> Iterator[str]:
    """Yield the subject and its prefixes at token boundaries, longest first."""
    yield subject
    end = subject.rfind(".")
    while end > 0:
        yield subject[:end]
        end = subject.rfind(".", 0, end)


@lru_cache(maxsize=8192)  # the same few subjects are validated for every message
def _fault(subject: str, allow_wildcards: bool) -> str | None:
    """Check a string of bounded length; a valid one is ASCII, so its characters are its bytes."""
    if not subject:
        return "it is empty"
    tokens = subject.split(".")
    if len(tokens) > SUBJECT_MAX_TOKENS:
        return f"it has more than {SUBJECT_MAX_TOKENS} tokens"
    for position, token in enumerate(tokens, start=1):
        reason = _token_fault(token, allow_wildcards, is_last=position == len(tokens))
        if reason is not None:
            return f"token {position} {reason}"
    return None


def _token_fault(token: str, allow_wildcards: bool, is_last: bool) -> str | None:
    if not token:
        return "is empty"
    if token in (ONE, REST):
        if not allow_wildcards:
            return f"is the wildcard `{token}`, which only patterns may hold"
        return None if token == ONE or is_last else "is `>`, which may only be the last"
    if _TOKEN.fullmatch(token) is None:
        return "has a character other than letters, digits, `_` and `-`"
    return None


def _topic_fault(topic: str) -> str | None:
    if type(topic) is not str:
        return "it is not a string"
    if topic.count(".") >= TOPIC_MAX_TOKENS:
        return f"it has more than {TOPIC_MAX_TOKENS} tokens"
    if len(topic) > TOPIC_MAX_BYTES:
        return f"it is longer than {TOPIC_MAX_BYTES} bytes"
    return _fault(topic, False)


V = TypeVar("V")


class _Node(Generic[V]):
    __slots__ = ("children", "entries")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        #: ticket -> value of the entries that end here
        self.entries: dict[int, V] = {}


class _Tokens(Generic[V]):
    """The tree of both tries: entries at the end of token paths, each under an increasing ticket."""

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
        """Return the number of nodes; a test uses it to check that removal frees them."""
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
        """Return the values of all subjects that the pattern matches, in the order they were added."""
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
