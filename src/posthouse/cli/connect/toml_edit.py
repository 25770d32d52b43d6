"""Setting one table of a TOML file as text: everything else, comments included, stays as it is.

A new table goes to the end of the file. In a table that is there the assignments that differ are replaced where they
stand. The result is read again and compared with what was meant before anybody gets it: a file that says the same in
another way, such as an inline table, is refused rather than guessed at.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

_HEADER = re.compile(r"\s*\[")


def set_table(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    """Return the text with the table [group.name] holding `wanted`; its other keys stay.

    Raises ValueError when the text is no TOML, or cannot be changed so.
    """
    before = tomllib.loads(text)
    meant = copy.deepcopy(before)
    table = meant.setdefault(group, {}).setdefault(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{group}.{name} is no table")
    differing = {key: value for key, value in wanted.items() if table.get(key) != value}
    if not differing:
        return text
    table.update(differing)
    is_new = name not in before.get(group, {})
    changed = _append(text, group, name, wanted) if is_new else _replace(text, group, name, differing)
    try:
        is_meant = tomllib.loads(changed) == meant
    except tomllib.TOMLDecodeError:
        is_meant = False
    if not is_meant:
        raise ValueError(f"{group}.{name} stands there in a way that cannot be changed safely")
    return changed


def _append(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"[{group}.{name}]", *(_assignment(key, value) for key, value in wanted.items())]
    gap = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
    return text + gap + newline.join(lines) + newline


def _replace(text: str, group: str, name: str, differing: Mapping[str, Any]) -> str:
    lines = text.splitlines(keepends=True)
    start = _header(lines, group, name)
    for key, value in differing.items():
        first, end = _assigned(lines, start + 1, key)
        newline = "\r\n" if lines[start].endswith("\r\n") else "\n"
        lines[first:end] = [_assignment(key, value) + newline]
    return "".join(lines)


def _header(lines: Sequence[str], group: str, name: str) -> int:
    wanted = re.compile(rf"\s*\[\s*{re.escape(group)}\s*\.\s*\"?{re.escape(name)}\"?\s*\]\s*(#.*)?$")
    found = [number for number, line in enumerate(lines) if wanted.match(line)]
    if len(found) != 1:
        raise ValueError(f"the header of [{group}.{name}] cannot be found")
    return found[0]


def _assigned(lines: Sequence[str], start: int, key: str) -> tuple[int, int]:
    """Return the lines of an assignment, or an empty range at the table's beginning when it is absent."""
    wanted = re.compile(rf"\s*\"?{re.escape(key)}\"?\s*=")
    for first in range(start, len(lines)):
        if _HEADER.match(lines[first]):
            break
        if wanted.match(lines[first]):
            return first, _end(lines, first)
    return start, start


def _end(lines: Sequence[str], first: int) -> int:
    for end in range(first + 1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[first:end]))
        except tomllib.TOMLDecodeError:
            continue
        return end
    raise ValueError("an assignment has no end")


def _assignment(key: str, value: Any) -> str:
    return f"{key} = {_dump(value)}"


def _dump(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(_dump(each) for each in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_dump(each)}" for name, each in value.items()) + " }"
    raise TypeError(f"{type(value).__name__} is not written here")
