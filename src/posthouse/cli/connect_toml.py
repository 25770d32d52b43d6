"""Set or remove one table of a TOML text; everything else, comments included, stays as it is.

The text is changed with tomlkit, parsed again and compared with the expected value. Pure: text in, text out;
ValueError gives the reason if the text cannot be changed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any


def set_table(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    """Return the text with `wanted` set in the table [group.name]; everything else stays as it is.

    Raises ValueError if the text is not TOML or has something other than a table there.
    """
    expected = tomllib.loads(text)
    servers = _child_table(expected, group)
    is_new = name not in servers
    current = _child_table(servers, name)
    differing = {key: value for key, value in wanted.items() if current.get(key) != value}
    if not differing:
        return text
    current.update(differing)
    changed = _append_table(text, group, name, wanted) if is_new else _update_table(text, group, name, differing)
    try:
        is_expected = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        is_expected = False
    if not is_expected:
        raise ValueError(f"the layout of [{group}.{name}] cannot be changed safely")
    return changed


def remove_table(text: str, group: str, name: str) -> str:
    """Return the text without the table [group.name]; everything else stays as it is."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    expected = tomllib.loads(text)
    if name not in _child_table(expected, group):
        return text
    del expected[group][name]
    if not expected[group]:
        del expected[group]
    try:
        document: Any = tomlkit.parse(text)
        del document[group][name]
        if not document[group]:
            del document[group]
    except TOMLKitError as fault:
        raise ValueError(f"the layout of [{group}.{name}] cannot be changed: {fault}") from fault
    changed = _keep_newlines(text, tomlkit.dumps(document))
    if tomllib.loads(changed) != expected:
        raise ValueError(f"the layout of [{group}.{name}] cannot be changed safely")
    return changed


def _child_table(parent: dict[str, Any], name: str) -> dict[str, Any]:
    child = parent.setdefault(name, {})
    if not isinstance(child, dict):
        raise ValueError(f"{name} is not a table")
    return child


def _append_table(text: str, group: str, name: str, wanted: Mapping[str, Any]) -> str:
    """Add the table at the end of the text: tomlkit would put it between existing tables."""
    import tomlkit

    items = {key: _toml_item(value) for key, value in wanted.items()}
    gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
    return _keep_newlines(text, text + gap + tomlkit.dumps({group: {name: items}}))


def _update_table(text: str, group: str, name: str, differing: Mapping[str, Any]) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(text)
        for key, value in differing.items():
            document[group][name][key] = _toml_item(value)
    except TOMLKitError as fault:
        raise ValueError(f"the layout of [{group}.{name}] cannot be changed: {fault}") from fault
    return _keep_newlines(text, tomlkit.dumps(document))


def _toml_item(value: Any) -> Any:
    """Return a mapping as an inline table, which stays inside the table that it is set in."""
    import tomlkit

    if not isinstance(value, dict):
        return value
    inline = tomlkit.inline_table()
    inline.update(value)
    return inline


def _keep_newlines(before: str, after: str) -> str:
    """Return `after` with CRLF line ends if `before` has only those; tomlkit ends new lines with LF."""
    is_crlf = "\n" in before and before.count("\n") == before.count("\r\n")
    return re.sub(r"(?<!\r)\n", "\r\n", after) if is_crlf else after
