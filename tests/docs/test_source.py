"""Rules of the house that no linter checks."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.docs.pages import ROOT

SOURCES = sorted((ROOT / "src" / "posthouse").rglob("*.py"))
OUTPUT = ROOT / "src" / "posthouse" / "cli" / "output.py"


def called_names(path: Path) -> set[str]:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def test_only_the_output_module_prints() -> None:
    assert [str(path) for path in SOURCES if path != OUTPUT and "print" in called_names(path)] == []


def test_every_module_opens_with_a_docstring() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in SOURCES}
    assert [name for name, text in texts.items() if text and not ast.get_docstring(ast.parse(text))] == []


def test_init_files_only_re_export() -> None:
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent != ROOT / "src" / "posthouse":
            body = ast.parse(path.read_text()).body[1:]
            assert all(isinstance(node, ast.ImportFrom | ast.Assign) or _is_for_checkers(node) for node in body), path


def _is_for_checkers(node: ast.stmt) -> bool:
    """Return True for the blocks of a package that loads its names at first use."""
    return isinstance(node, ast.If) and ast.unparse(node.test).removeprefix("not ") == "TYPE_CHECKING"
