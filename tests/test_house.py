from __future__ import annotations

from pathlib import Path

import pytest

from scripts import house

RULES = """\
module_max_lines = 450
module_min_lines = 60
function_max_lines = 60
one_importer_max_lines = 80
one_importer_most = 1
name_most = 3
glossary_names = ["queue"]
small_kinds = ["posthouse.codes.*"]
[small]
[one_importer]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project without a line of Python, with rules of its own."""
    write(tmp_path, "scripts/house.toml", RULES)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def failures(root: Path) -> list[str]:
    return house.inspect(root).failures


def function_of(lines: int) -> str:
    return "def stage() -> None:\n" + "    pass\n" * (lines - 1)


def module_of(lines: int, *first: str) -> str:
    return "".join(f"{line}\n" for line in first) + "x = 1\n" * (lines - len(first))


@pytest.mark.parametrize(("lines", "count"), [(59, 1), (60, 0), (450, 0), (451, 1)])
def test_module_above_the_ceiling_or_below_the_floor_fails(root: Path, lines: int, count: int) -> None:
    write(root, "src/posthouse/a.py", module_of(lines))
    assert len(failures(root)) == count


def test_small_module_is_fine_if_its_kind_or_its_reason_is_listed(root: Path) -> None:
    write(root, "src/posthouse/codes/bus_errors.py", module_of(10))
    write(root, "src/posthouse/version.py", module_of(3))
    assert failures(root) == ["src/posthouse/version.py has 3 lines; merge it with its neighbour"]
    write(root, "scripts/house.toml", RULES.replace("[small]", '[small]\n"posthouse.version" = "the build reads it"'))
    assert failures(root) == []


def test_reason_for_a_module_that_is_gone_or_has_grown_fails(root: Path) -> None:
    write(root, "src/posthouse/a.py", module_of(100))
    reasons = '[small]\n"posthouse.a" = "was small"\n"posthouse.b" = "was there"'
    write(root, "scripts/house.toml", RULES.replace("[small]", reasons))
    assert failures(root) == [
        "house.toml: posthouse.a is no longer small",
        "house.toml: there is no module posthouse.b",
    ]


@pytest.mark.parametrize(("lines", "importers", "count"), [(80, 1, 1), (81, 1, 0), (80, 2, 0)])
def test_small_module_with_one_importer_in_its_package_fails(
    root: Path, lines: int, importers: int, count: int
) -> None:
    write(root, "src/posthouse/bus/part.py", module_of(lines))
    for number in range(importers):
        write(root, f"src/posthouse/bus/user{number}.py", module_of(100, "from posthouse.bus.part import x"))
    assert len(failures(root)) == count


def test_import_inside_a_function_counts_as_an_importer(root: Path) -> None:
    write(root, "src/posthouse/bus/part.py", module_of(70))
    write(root, "src/posthouse/bus/a.py", module_of(100, "def f():", "    from posthouse.bus import part"))
    assert failures(root) == ["src/posthouse/bus/part.py is imported by posthouse.bus.a alone; make it part of it"]


def test_more_reasons_for_one_importer_than_allowed_fail(root: Path) -> None:
    reasons = "[one_importer]\n"
    for name in ("b", "c"):
        write(root, f"src/posthouse/bus/{name}.py", module_of(70))
        reasons += f'"posthouse.bus.{name}" = "people look for it by name"\n'
    write(root, "src/posthouse/bus/a.py", module_of(100, "from posthouse.bus import b, c"))
    write(root, "scripts/house.toml", RULES.replace("[one_importer]", reasons))
    assert failures(root) == ["house.toml: more than 1 modules with one importer"]


@pytest.mark.parametrize(("name", "count"), [("rows", 1), ("queue", 0)])
def test_file_name_used_more_than_three_times_fails_unless_the_glossary_has_it(
    root: Path, name: str, count: int
) -> None:
    for package in ("a", "b", "c", "d"):
        write(root, f"src/posthouse/{package}/{name}.py", module_of(100))
    assert len(failures(root)) == count


@pytest.mark.parametrize(("lines", "count"), [(60, 0), (61, 1)])
def test_long_function_fails(root: Path, lines: int, count: int) -> None:
    write(root, "tests/a.py", function_of(lines))
    assert len(failures(root)) == count


@pytest.mark.parametrize("name", ["src/posthouse/utils.py", "src/posthouse/helpers/box.py", "tests/common.py"])
def test_name_that_says_nothing_fails(root: Path, name: str) -> None:
    write(root, name, module_of(100))
    assert len(failures(root)) == 1


def test_report_shows_medians_and_the_share_of_imports(root: Path) -> None:
    write(root, "src/posthouse/a.py", module_of(100, "import sys"))
    write(root, "src/posthouse/b.py", module_of(140, *function_of(20).splitlines()))
    summary = house.inspect(root).summary()
    assert "2 modules in 1 packages, median 120 lines, largest 140, imports 0.4 %" in summary
    assert "1 functions, median 20" in summary
