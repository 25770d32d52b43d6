from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT, text_of

PAGE = "docs/architecture.md"
SOURCE = ROOT / "src/posthouse"
#: a file in backticks, and the function that may follow it
_FILE = re.compile(r"`(?P<path>[\w/]+\.py)`(?: `(?P<function>\w+(?:\.\w+)?)`)?")


def test_walk_names_only_files_and_functions_that_exist() -> None:
    assert [missing for step in steps() for missing in missing_in(step)] == []


def test_map_has_every_part_of_the_product_and_nothing_else() -> None:
    table = section("The map").partition("Inside the relay")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert named == parts_of(SOURCE)


def test_map_has_every_part_of_the_relay_and_nothing_else() -> None:
    block = section("The map").partition("```text\n")[2].partition("```")[0]
    named = {name for line in block.splitlines() for name in re.findall(r"\w+", re.split(r" {3,}", line)[0])}
    assert named == parts_of(SOURCE / "relay")


def section(title: str) -> str:
    return text_of(PAGE).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def steps() -> list[str]:
    """Return the numbered steps of the walk of one message."""
    return re.split(r"^\d+\. ", section("One message, file by file"), flags=re.M)[1:]


def missing_in(step: str) -> Iterator[str]:
    """Yield the files and functions of a step that do not exist; a bare name lies in a folder the step has named."""
    folders = {SOURCE}
    assert _FILE.search(step), step
    for found in _FILE.finditer(step):
        paths = [folder / found["path"] for folder in folders if (folder / found["path"]).is_file()]
        if not paths:
            yield found["path"]
            continue
        folders |= {path.parent for path in paths if "/" in found["path"]}
        if found["function"] and not any(found["function"] in functions_of(path) for path in paths):
            yield found[0]


def functions_of(path: Path) -> set[str]:
    """Return the functions and classes of a module, and its methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, DEFINITIONS)}
        if isinstance(node, (ast.ClassDef, *DEFINITIONS)):
            names.add(node.name)
    return names


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def parts_of(package: Path) -> set[str]:
    """Return the modules and folders of a package."""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in package.glob("*/__init__.py")}
