"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SOURCES = sorted((ROOT / "src" / "posthouse").rglob("*.py"))
CONSOLE = ROOT / "src" / "posthouse" / "cli" / "console.py"


def called_names(path: Path) -> set[str]:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def test_nothing_prints_but_the_console() -> None:
    assert [str(path) for path in SOURCES if path != CONSOLE and "print" in called_names(path)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    assert text == "" or ast.get_docstring(ast.parse(text)), "a module opens with a docstring"


def test_init_files_only_re_export() -> None:
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent != ROOT / "src" / "posthouse":
            body = ast.parse(path.read_text()).body[1:]
            assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in body), path
