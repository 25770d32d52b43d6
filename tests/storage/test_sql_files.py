"""Named statements of SQL files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import posthouse
from posthouse.storage.sql_files import Statements


def write_package(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"statements_of_{folder.name.replace('-', '_')}"
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    (folder / name / "s.sql").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return name


def unused_statements(root: Path) -> list[str]:
    """Return the statements of the .sql files below `root` that no module looks up, as in `SQL.name` or `_sql.name`."""
    used = {name for path in root.rglob("*.py") for name in re.findall(r"\b\w*(?:SQL|_sql)\.(\w+)", path.read_text())}
    return [
        f"{path.relative_to(root)}: {name}"
        for path in sorted(root.rglob("*.sql"))
        for name in re.findall(r"^-- :name (\w+)", path.read_text(), re.MULTILINE)
        if name not in used
    ]


def test_code_uses_every_named_statement() -> None:
    assert unused_statements(Path(posthouse.__file__).parent) == []


def test_statement_that_no_module_looks_up_counts_as_unused(tmp_path: Path) -> None:
    (tmp_path / "s.sql").write_text("-- :name one\nSELECT 1\n-- :name two\nSELECT 2\n")
    (tmp_path / "m.py").write_text("db.execute(EVENTS_SQL.one); rows.two\n")
    assert unused_statements(tmp_path) == ["s.sql: two"]


def test_statements_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "-- :name one\nSELECT 1\n\n-- :name two\n-- why\nSELECT\n  2\n"
    sql = Statements(write_package(tmp_path, text, monkeypatch), "s.sql")
    assert sql.one == "SELECT 1"
    assert sql.two == "-- why\nSELECT\n  2"
    assert sql.names() == {"one", "two"}
    with pytest.raises(AttributeError, match="three"):
        _ = sql.three


def test_a_name_given_twice_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write_package(tmp_path, "-- :name one\nSELECT 1\n-- :name one\nSELECT 2\n", monkeypatch)
    with pytest.raises(ValueError, match="twice"):
        Statements(package, "s.sql")
