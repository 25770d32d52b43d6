"""The house report: whether the layout of the code still helps a newcomer to find things.

Fails for a product module that is too long or too short, a small module that only its neighbour imports, a file name
that occurs too often, a function that is too long and a module name that says nothing. `scripts/house.toml` holds the
limits and every exception with its reason; an exception that no longer applies fails too. Import cycles are
import-linter's subject.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

CHECKED = ("src", "tests", "bench", "scripts", "examples")
FORBIDDEN = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "misc", "base"})


@dataclass
class Module:
    """One Python file with what the report needs to know about it."""

    name: str
    shown: str
    lines: int
    tree: ast.Module
    is_package: bool

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass
class Report:
    """What was measured and what was found."""

    modules: list[Module] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    import_lines: int = 0
    failures: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return the figures in one line, so that a drift shows before it hurts."""
        sizes = [module.lines for module in self.modules] or [0]
        functions = sorted(self.functions) or [0]
        share = 100 * self.import_lines / max(1, sum(sizes))
        return (
            f"house: {len(sizes)} modules in {len({module.package for module in self.modules})} packages, "
            f"median {round(statistics.median(sizes))} lines, largest {max(sizes)}, imports {share:.1f} %; "
            f"{len(functions)} functions, median {round(statistics.median(functions))}, "
            f"p90 {functions[int(len(functions) * 0.9)]}, largest {functions[-1]}"
        )


def inspect(root: Path) -> Report:
    """Measure the project at `root` against its `scripts/house.toml`."""
    rules = tomllib.loads((root / "scripts" / "house.toml").read_text())
    report = Report()
    for path in sorted(path for folder in CHECKED for path in (root / folder).rglob("*.py")):
        _check_file(path, root, rules, report)
    product = [*_product(root)]
    report.modules = [module for module in product if not module.is_package]
    report.import_lines = sum(_import_lines(module.tree) for module in report.modules)
    _check_sizes(report, rules)
    _check_importers(product, report, rules)
    _check_names(report, rules)
    return report


def _check_file(path: Path, root: Path, rules: dict[str, Any], report: Report) -> None:
    shown = str(path.relative_to(root))
    for name in sorted({path.stem, path.parent.name} & FORBIDDEN):
        report.failures.append(f"{shown}: {name} is no name for a module")
    for node in ast.walk(ast.parse(path.read_text(), filename=shown)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            report.functions.append(lines)
            if lines > rules["function_max_lines"]:
                report.failures.append(f"{shown}:{node.lineno} {node.name} has {lines} lines; split it")


def _product(root: Path) -> Iterator[Module]:
    source = root / "src"
    for path in sorted(source.rglob("*.py")):
        if path.stem.endswith("_pb2"):
            continue
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        text = path.read_text()
        name = ".".join(parts[:-1] if is_package else parts)
        yield Module(name, str(path.relative_to(root)), text.count("\n"), ast.parse(text), is_package)


def _import_lines(tree: ast.Module) -> int:
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)


def _check_sizes(report: Report, rules: dict[str, Any]) -> None:
    """Refuse modules above the ceiling, and those below the floor that have no reason to be small."""
    kinds, reasons = rules["small_kinds"], dict(rules["small"])
    for module in report.modules:
        reason = reasons.pop(module.name, None)
        if module.lines > rules["module_max_lines"]:
            report.failures.append(f"{module.shown} has {module.lines} lines; at most {rules['module_max_lines']}")
        is_small = module.lines < rules["module_min_lines"]
        if is_small and reason is None and not any(fnmatch(module.name, kind) for kind in kinds):
            report.failures.append(f"{module.shown} has {module.lines} lines; merge it with its neighbour")
        if reason is not None and not is_small:
            report.failures.append(f"house.toml: {module.name} is no longer small")
    report.failures.extend(f"house.toml: there is no module {name}" for name in reasons)


def _check_importers(product: list[Module], report: Report, rules: dict[str, Any]) -> None:
    """Refuse small modules with one importer in their own package: they are part of that importer."""
    importers = _importers(product)
    reasons = dict(rules["one_importer"])
    for module in report.modules:
        users = importers[module.name]
        is_part = (
            module.lines <= rules["one_importer_max_lines"]
            and len(users) == 1
            and next(iter(users)).rpartition(".")[0] == module.package
        )
        reason = reasons.pop(module.name, None)
        if is_part and reason is None:
            report.failures.append(f"{module.shown} is imported by {next(iter(users))} alone; make it part of it")
        if reason is not None and not is_part:
            report.failures.append(f"house.toml: {module.name} needs no reason for its one importer")
    report.failures.extend(f"house.toml: there is no module {name}" for name in reasons)
    if len(rules["one_importer"]) > rules["one_importer_most"]:
        report.failures.append(f"house.toml: more than {rules['one_importer_most']} modules with one importer")


def _importers(product: list[Module]) -> dict[str, set[str]]:
    names = {module.name for module in product}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in product:
        for node in ast.walk(module.tree):
            for target in _targets(node, names):
                if target != module.name:
                    importers[target].add(module.name)
    return importers


def _targets(node: ast.AST, names: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in names)
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in names else node.module


def _check_names(report: Report, rules: dict[str, Any]) -> None:
    """Refuse file names that occur too often; a word of the glossary may occur once in each package."""
    stems = Counter(module.stem for module in report.modules)
    for stem, count in sorted(stems.items()):
        if count > rules["name_most"] and stem not in rules["glossary_names"]:
            where = ", ".join(module.name for module in report.modules if module.stem == stem)
            report.failures.append(f"{count} files are called {stem}.py: {where}")


def main() -> int:
    """Print the report; the exit code says whether the house is in order."""
    report = inspect(Path(__file__).resolve().parent.parent)
    sys.stdout.write("\n".join([*(f"error: {text}" for text in report.failures), report.summary()]) + "\n")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
