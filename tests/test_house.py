from __future__ import annotations

from pathlib import Path

import pytest

from scripts import house


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def function_of(lines: int) -> str:
    return "def stage() -> None:\n" + "    pass\n" * (lines - 1)


def test_house_is_in_order() -> None:
    assert house.inspect(Path(house.__file__).parent.parent).failures == []


@pytest.mark.parametrize(("lines", "warnings", "failures"), [(400, 0, 0), (401, 1, 0), (600, 1, 0), (601, 0, 1)])
def test_long_file_is_named_and_a_longer_one_fails(tmp_path: Path, lines: int, warnings: int, failures: int) -> None:
    write(tmp_path, "src/a.py", "x = 1\n" * lines)
    report = house.inspect(tmp_path)
    assert (len(report.warnings), len(report.failures)) == (warnings, failures)


@pytest.mark.parametrize(("lines", "failures"), [(60, 0), (61, 1)])
def test_long_function_fails(tmp_path: Path, lines: int, failures: int) -> None:
    write(tmp_path, "tests/a.py", function_of(lines))
    assert len(house.inspect(tmp_path).failures) == failures


@pytest.mark.parametrize("name", ["src/posthouse/utils.py", "src/posthouse/helpers/box.py", "tests/common.py"])
def test_name_that_says_nothing_fails(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "")
    assert len(house.inspect(tmp_path).failures) == 1


def test_report_tells_medians(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py", function_of(10))
    write(tmp_path, "src/b.py", function_of(20))
    summary = house.inspect(tmp_path).summary()
    assert "2 files, median 15 lines, largest 20" in summary
    assert "2 functions, median 15" in summary
