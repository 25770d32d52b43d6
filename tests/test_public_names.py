from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import posthouse
import posthouse.client.daemon

HEAVY = {"apsw", "aiohttp", "nacl", "asyncio", "msgspec"}


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after `code`."""
    report = "\nimport sys\nsys.stdout.write(' '.join({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_posthouse_loads_no_library() -> None:
    assert loaded_by("import posthouse") & HEAVY == set()


@pytest.mark.parametrize("name", ["AccessRule", "Budget", "Envelope", "Event", "PosthouseError", "Signal"])
def test_values_and_errors_load_neither_sqlite_nor_network_nor_cryptography(name: str) -> None:
    assert loaded_by(f"from posthouse import {name}") & {"apsw", "aiohttp", "nacl", "sqlite3"} == set()


def test_control_a_name_with_a_library_does_load_it() -> None:
    assert "nacl" in loaded_by("from posthouse import NodeKey")


def test_public_names_are_sorted_and_unique() -> None:
    assert posthouse.__all__ == sorted(set(posthouse.__all__))


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in posthouse.__all__ if getattr(posthouse, name, None) is None] == []
    assert set(posthouse.__all__) <= set(dir(posthouse))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Pigeon'"):
        _ = posthouse.Pigeon  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "package", [posthouse, posthouse.client, posthouse.client.daemon], ids=lambda each: each.__name__
)
def test_type_checkers_see_the_same_names_from_the_same_modules(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"posthouse.{home}" for home, names in package._HOMES.items() for name in names}
    assert sorted(seen) == package.__all__
    assert [name for name in package.__all__ if getattr(package, name, None) is None] == []
