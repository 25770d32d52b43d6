"""Set or remove one entry of a JSON or JSONC text; the rest, comments and layout included, stays byte for byte.

The text is parsed with positions (Node), edited as text, parsed again and compared with the expected value. Comments
and trailing commas are accepted only if the program that owns the file accepts them. Pure: text in, text out;
ValueError names the line.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


@dataclass
class Node:
    """A value and its position in the text."""

    start: int
    end: int
    value: Any
    #: members of an object, by name
    members: dict[str, Node] = field(default_factory=dict)
    #: items of an array
    items: list[Node] = field(default_factory=list)
    #: a comma follows the last member or item
    has_trailing_comma: bool = False


def parse(text: str, *, is_lenient: bool) -> Node:
    """Return the value of a whole text; `is_lenient` allows comments and trailing commas."""
    reader = _Reader(text, is_lenient)
    reader.skip()
    node = reader.value(0)
    reader.skip()
    if reader.at != len(text):
        raise reader.fault("unexpected text after the value")
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
                raise self.fault("JSON does not allow comments")
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
                raise self.fault(f"{key.value!r} occurs twice")
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
            node.items.append(self.value(depth + 1))
            node.value.append(node.items[-1].value)
        return self._closed(node)

    def _closed(self, node: Node) -> Node:
        self.at += 1
        node.end = self.at
        return node

    def _ends(self, closing: str, node: Node) -> bool:
        """Move to the next member, or return True at the closing bracket."""
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
            raise self.fault("JSON does not allow a comma before the closing bracket")
        return node.has_trailing_comma

    def _string(self) -> Node:
        match = _STRING.match(self._text, self.at)
        if match is None:
            raise self.fault("a quoted string is missing")
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


_UNIT = "  "
IsOurs = Callable[[Any], bool]


def set_entry(text: str, group: str, name: str, wanted: Mapping[str, Any], *, is_lenient: bool) -> str:
    """Return the text with `group`.`name` set; members of that entry that are not in `wanted` stay.

    Raises ValueError if the text is not JSON or its layout cannot be changed safely.
    """
    text, root = _parse_object(text, is_lenient=is_lenient)
    expected = copy.deepcopy(root.value)
    entry = _entry(expected, group, name)
    if all(entry.get(key) == value for key, value in wanted.items()):
        return text
    entry.update(wanted)
    return _checked(_change(text, root, group, name, entry), expected, is_lenient=is_lenient)


def set_member(text: str, name: str, value: Any, *, is_lenient: bool) -> str:
    """Return the text with a new member of the outer object; an existing one stays as it is."""
    text, root = _parse_object(text, is_lenient=is_lenient)
    if name in root.value:
        return text
    return _checked(_insert(text, root, name, value), {**root.value, name: value}, is_lenient=is_lenient)


def remove_entry(text: str, group: str, name: str, *, is_lenient: bool) -> str:
    """Return the text without `group`.`name`, and without the group if that was its only member."""
    text, root = _parse_object(text, is_lenient=is_lenient)
    if name not in root.value.get(group, {}):
        return text
    expected = copy.deepcopy(root.value)
    del expected[group][name]
    if expected[group]:
        return _checked(_cut_member(text, root.members[group], name), expected, is_lenient=is_lenient)
    del expected[group]
    return _checked(_cut_member(text, root, group), expected, is_lenient=is_lenient)


def set_item(text: str, group: str, name: str, is_ours: IsOurs, wanted: Any, *, is_lenient: bool) -> str:
    """Return the text with our item of the array `group`.`name` set: replaced where it stands, else added at the end.

    Raises ValueError as `set_entry` does.
    """
    text, root = _parse_object(text, is_lenient=is_lenient)
    expected, items = _items(root, group, name)
    ours = [index for index, item in enumerate(items) if is_ours(item)]
    if ours and items[ours[0]] == wanted:
        return text
    if ours:
        items[ours[0]] = wanted
        changed = _replace(text, root.members[group].members[name].items[ours[0]], wanted)
    else:
        items.append(wanted)
        changed = _add_item(text, root, group, name, wanted)
    return _checked(changed, expected, is_lenient=is_lenient)


def remove_items(text: str, group: str, name: str, is_ours: IsOurs, *, is_lenient: bool) -> str:
    """Return the text without our items of the array `group`.`name`, and without containers that become empty."""
    text, root = _parse_object(text, is_lenient=is_lenient)
    expected, items = _items(root, group, name)
    kept = [item for item in items if not is_ours(item)]
    if len(kept) == len(items):
        return text
    if not kept:
        return remove_entry(text, group, name, is_lenient=is_lenient)
    items[:] = kept
    return _checked(_replace(text, root.members[group].members[name], kept), expected, is_lenient=is_lenient)


def _items(root: Node, group: str, name: str) -> tuple[Any, list[Any]]:
    """Return a copy of the whole value, and the array `group`.`name` inside that copy."""
    expected = copy.deepcopy(root.value)
    parent = expected.setdefault(group, {})
    items = parent.setdefault(name, []) if isinstance(parent, dict) else None
    if not isinstance(items, list):
        raise ValueError(f"{group}.{name} is not an array")
    return expected, items


def _replace(text: str, node: Node, value: Any) -> str:
    shown = _dump(value, _indent_at(text, node.start), _newline(text))
    return text[: node.start] + shown + text[node.end :]


def _parse_object(text: str, *, is_lenient: bool) -> tuple[str, Node]:
    text = text if text.strip() else "{}\n"
    root = parse(text, is_lenient=is_lenient)
    if not isinstance(root.value, dict):
        raise ValueError("it is not an object")
    return text, root


def _checked(changed: str, expected: Any, *, is_lenient: bool) -> str:
    if parse(changed, is_lenient=is_lenient).value != expected:
        raise ValueError("its layout does not allow a safe change")
    return changed


def _entry(expected: dict[str, Any], group: str, name: str) -> dict[str, Any]:
    servers = expected.setdefault(group, {})
    if not isinstance(servers, dict):
        raise ValueError(f"{group} is not an object")
    entry = servers.setdefault(name, {})
    if not isinstance(entry, dict):
        raise ValueError(f"{group}.{name} is not an object")
    return entry


def _change(text: str, root: Node, group: str, name: str, entry: dict[str, Any]) -> str:
    servers = root.members.get(group)
    if servers is None:
        return _insert(text, root, group, {name: entry})
    present = servers.members.get(name)
    if present is None:
        return _insert(text, servers, name, entry)
    return _replace(text, present, entry)


def _add_item(text: str, root: Node, group: str, name: str, item: Any) -> str:
    parent = root.members.get(group)
    if parent is None:
        return _insert(text, root, group, {name: [item]})
    array = parent.members.get(name)
    return _insert(text, parent, name, [item]) if array is None else _insert(text, array, None, item)


def _insert(text: str, parent: Node, name: str | None, value: Any) -> str:
    """Add a member to an object, or without a name an item to an array: at the end, below any comments."""
    newline, outer = _newline(text), _indent_at(text, parent.start)
    inside = parent.items or list(parent.members.values())
    last = inside[-1] if inside else None
    inner = outer + _UNIT if last is None else _member_indent(text, parent, last, outer)
    close = parent.end - 1
    tail = len(text[:close].rstrip())
    label = "" if name is None else f"{json.dumps(name)}: "
    member = f"{newline}{inner}{label}{_dump(value, inner, newline)}{newline}{outer}"
    if last is None or parent.has_trailing_comma:
        return text[:tail] + member + text[close:]
    return text[: last.end] + "," + text[last.end : tail] + member + text[close:]


def _cut_member(text: str, parent: Node, name: str) -> str:
    """Remove a member with the comma that separates it; comments between members stay with the one before."""
    names = list(parent.members)
    at, end = names.index(name), parent.members[name].end
    if at > 0:
        return text[: parent.members[names[at - 1]].end] + text[end:]
    if len(names) == 1 and not parent.has_trailing_comma:
        return text[: parent.start] + "{}" + text[parent.end :]
    comma = text.index(",", end)
    return text[: parent.start + 1] + text[comma + 1 :]


def _member_indent(text: str, parent: Node, last: Node, outer: str) -> str:
    is_on_own_line = "\n" in text[parent.start : last.start]
    return _indent_at(text, last.start) if is_on_own_line else outer + _UNIT


def _indent_at(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    found = re.match(r"[ \t]*", line)
    return found.group() if found is not None else ""


def _dump(value: Any, indent: str, newline: str) -> str:
    unit = "\t" if indent.startswith("\t") else _UNIT
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", newline + indent)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
