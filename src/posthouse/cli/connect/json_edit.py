"""Setting one entry of a JSON file as text: everything else, comments and layout included, stays as it is.

The result is read again and compared with what was meant before anybody gets it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

from posthouse.cli.connect.jsonc import Node, parse

_UNIT = "  "


def set_entry(text: str, group: str, name: str, wanted: Mapping[str, Any], *, is_lenient: bool) -> str:
    """Return the text with `group`.`name` set; members of that entry that are not in `wanted` stay.

    Raises ValueError when the text is no such file, or cannot be changed so.
    """
    text = text if text.strip() else "{}\n"
    root = parse(text, is_lenient=is_lenient)
    if not isinstance(root.value, dict):
        raise ValueError("it holds no object")
    meant = copy.deepcopy(root.value)
    entry = _entry(meant, group, name)
    if all(entry.get(key) == value for key, value in wanted.items()):
        return text
    entry.update(wanted)
    changed = _change(text, root, group, name, entry)
    if parse(changed, is_lenient=is_lenient).value != meant:
        raise ValueError("its layout does not allow a safe change")
    return changed


def _entry(meant: dict[str, Any], group: str, name: str) -> dict[str, Any]:
    servers = meant.setdefault(group, {})
    if not isinstance(servers, dict):
        raise ValueError(f"{group} is no object")
    entry = servers.setdefault(name, {})
    if not isinstance(entry, dict):
        raise ValueError(f"{group}.{name} is no object")
    return entry


def _change(text: str, root: Node, group: str, name: str, entry: dict[str, Any]) -> str:
    servers = root.members.get(group)
    if servers is None:
        return _insert(text, root, group, {name: entry})
    present = servers.members.get(name)
    if present is None:
        return _insert(text, servers, name, entry)
    shown = _dump(entry, _indent_at(text, present.start), _newline(text))
    return text[: present.start] + shown + text[present.end :]


def _insert(text: str, place: Node, name: str, value: Any) -> str:
    """Add a member behind the last one of an object, below its comments."""
    newline, outer = _newline(text), _indent_at(text, place.start)
    last = list(place.members.values())[-1] if place.members else None
    inner = outer + _UNIT if last is None else _member_indent(text, place, last, outer)
    close = place.end - 1
    tail = len(text[:close].rstrip())
    member = f"{newline}{inner}{json.dumps(name)}: {_dump(value, inner, newline)}{newline}{outer}"
    if last is None or place.has_trailing_comma:
        return text[:tail] + member + text[close:]
    return text[: last.end] + "," + text[last.end : tail] + member + text[close:]


def _member_indent(text: str, place: Node, last: Node, outer: str) -> str:
    is_on_own_line = "\n" in text[place.start : last.start]
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
