"""JSON with positions: what a text says, and where in it each member stands, so that an edit can leave the rest alone.

Comments and trailing commas are read where the program that owns the file reads them, and refused elsewhere. Pure:
text in, a tree out; what is no such text raises ValueError with the line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


@dataclass
class Node:
    """A value and where it stands."""

    start: int
    end: int
    value: Any
    #: of an object, by name
    members: dict[str, Node] = field(default_factory=dict)
    #: behind the last member stands a comma already
    has_trailing_comma: bool = False


def parse(text: str, *, is_lenient: bool) -> Node:
    """Return the value of a whole text; `is_lenient` allows comments and trailing commas."""
    reader = _Reader(text, is_lenient)
    reader.skip()
    node = reader.value(0)
    reader.skip()
    if reader.at != len(text):
        raise reader.fault("something follows the value")
    return node


class _Reader:
    def __init__(self, text: str, is_lenient: bool) -> None:
        self._text = text
        self._is_lenient = is_lenient
        self.at = 0

    def fault(self, what: str) -> ValueError:
        return ValueError(f"line {self._text.count(chr(10), 0, self.at) + 1}: {what}")

    def skip(self) -> None:
        while True:
            match = _SPACE.match(self._text, self.at)
            self.at = match.end() if match is not None else self.at
            comment = _COMMENT.match(self._text, self.at)
            if comment is None:
                return
            if not self._is_lenient:
                raise self.fault("a comment, which JSON does not have")
            self.at = comment.end()

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.fault("it is nested too deeply")
        first = self._text[self.at : self.at + 1]
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        return self._string() if first == '"' else self._scalar()

    def _object(self, depth: int) -> Node:
        node = Node(self.at, self.at, {})
        self.at += 1
        while not self._ends("}", node):
            key = self._string()
            if key.value in node.members:
                raise self.fault(f"{key.value!r} stands twice")
            self.skip()
            self._expect(":")
            self.skip()
            node.members[key.value] = member = self.value(depth + 1)
            node.value[key.value] = member.value
        return self._closed(node)

    def _array(self, depth: int) -> Node:
        node = Node(self.at, self.at, [])
        self.at += 1
        while not self._ends("]", node):
            node.value.append(self.value(depth + 1).value)
        return self._closed(node)

    def _closed(self, node: Node) -> Node:
        self.at += 1
        node.end = self.at
        return node

    def _ends(self, closing: str, node: Node) -> bool:
        """Go to the next member, or to the closing bracket, which is told."""
        self.skip()
        is_first, found = not node.value, self._text[self.at : self.at + 1]
        if found == closing:
            return True
        if is_first:
            return False
        self._expect(",")
        self.skip()
        node.has_trailing_comma = self._text[self.at : self.at + 1] == closing
        if node.has_trailing_comma and not self._is_lenient:
            raise self.fault("a comma before the closing bracket")
        return node.has_trailing_comma

    def _string(self) -> Node:
        match = _STRING.match(self._text, self.at)
        if match is None:
            raise self.fault("a text in quotes is missing")
        start, self.at = self.at, match.end()
        return Node(start, self.at, json.loads(match.group()))

    def _scalar(self) -> Node:
        match = _SCALAR.match(self._text, self.at)
        if match is None:
            raise self.fault("a value is missing")
        start, self.at = self.at, match.end()
        return Node(start, self.at, json.loads(match.group()))

    def _expect(self, mark: str) -> None:
        if self._text[self.at : self.at + 1] != mark:
            raise self.fault(f"{mark!r} is missing")
        self.at += 1
