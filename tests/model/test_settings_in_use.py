"""A setting works or does not exist: the product's code reads every setting of the registry.

A setting is read where its name is the index of a lookup, as in `values["relay.listen"]`, the argument of a typed
accessor, as in `values.path("bus.dir")`, or an element of a tuple of names to look up. In a module that strips the
prefix of an area (`name.removeprefix("relay.")`), the key alone is the index. Declarations, flags (keys of a dict) and
the commands that show settings do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import posthouse
from posthouse.cli.config import Settings
from posthouse.model.settings import SETTINGS

SOURCES = Path(posthouse.__file__).parent
SHOWN_IN = {"model/settings.py", "model/settings_sources.py", "cli/config.py"}


ACCESSORS = {name for name in vars(Settings) if not name.startswith("_")}


def names_read(source: str) -> set[str]:
    """Return the names, and keys completed with the area of the module, that `source` looks up."""
    tree = ast.parse(source)
    names = {text for node in ast.walk(tree) for text in _texts(_looked_up(node))}
    prefixes = {text for node in ast.walk(tree) for text in _texts(_stripped(node))}
    return names | {prefix + name for prefix in prefixes for name in names}


def _looked_up(node: ast.AST) -> Iterable[ast.expr]:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return [node.slice]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ACCESSORS:
        return node.args[:1]
    return node.elts if isinstance(node, ast.Tuple) else []


def _stripped(node: ast.AST) -> Iterable[ast.expr]:
    is_strip = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "removeprefix"
    return node.args if is_strip and isinstance(node, ast.Call) else []


def _texts(nodes: Iterable[ast.expr]) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_every_setting_is_read_by_the_code() -> None:
    paths = [path for path in SOURCES.rglob("*.py") if path.relative_to(SOURCES).as_posix() not in SHOWN_IN]
    read = set[str]().union(*(names_read(path.read_text()) for path in paths))
    assert sorted(SETTINGS.keys() - read) == []


def test_lookup_counts_as_a_read_and_declaration_or_flag_does_not() -> None:
    assert names_read('limit = values["relay.queue_max"].value') == {"relay.queue_max"}
    assert names_read('limit = values.integer("relay.queue_max")') == {"relay.queue_max"}
    assert "relay.queue_max" in names_read('key = name.removeprefix("relay."); limit = given["queue_max"]')
    assert "journal.lake" in names_read('wanted = {name: SETTINGS[name] for name in ("journal.lake", "bus.dir")}')
    for source in ('Setting("bus.max_hops", int, 5, "Hops.")', 'load({"bus.max_hops": 3})', 'given["max_hops"]'):
        assert "bus.max_hops" not in names_read(source)
