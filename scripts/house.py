"""The house report: how large files and functions are, and whether a module has a name that says nothing.

A file over 600 lines, a function over 60 or a forbidden name fails; a file over 400 lines is named. Only
Python under src, tests, bench, scripts and examples counts. The medians are printed, so that a drift shows
before it hurts.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDERS = ("src", "tests", "bench", "scripts", "examples")
FILE_LOOK = 400  # lines: look hard
FILE_SPLIT = 600  # lines: split
FUNCTION_SPLIT = 60  # lines, signature and docstring included
FORBIDDEN = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "misc", "base"})


@dataclass
class Report:
    """What was measured and what was found."""

    files: list[int] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def summary(self) -> str:
        functions = self.functions or [0]
        return (
            f"house: {len(self.files)} files, median {_median(self.files)} lines, "
            f"largest {max(self.files, default=0)}; "
            f"{len(self.functions)} functions, median {_median(functions)}, "
            f"p90 {_percentile_90(functions)}, largest {max(functions)}"
        )


def inspect(root: Path) -> Report:
    """Measure every Python file of the project at `root`."""
    report = Report()
    for path in sorted(_sources(root)):
        _inspect_file(path, str(path.relative_to(root)), report)
    return report


def _sources(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (root / folder).rglob("*.py")


def _inspect_file(path: Path, shown: str, report: Report) -> None:
    text = path.read_text()
    lines = text.count("\n")
    report.files.append(lines)
    if lines > FILE_SPLIT:
        report.failures.append(f"{shown} has {lines} lines; split it at {FILE_SPLIT}")
    elif lines > FILE_LOOK:
        report.warnings.append(f"{shown} has {lines} lines; look hard at {FILE_LOOK}")
    names = {path.stem, path.parent.name}
    report.failures.extend(f"{shown}: {name} is no name for a module" for name in sorted(names & FORBIDDEN))
    for node in ast.walk(ast.parse(text, filename=shown)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _inspect_function(node, shown, report)


def _inspect_function(node: ast.FunctionDef | ast.AsyncFunctionDef, shown: str, report: Report) -> None:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    report.functions.append(lines)
    if lines > FUNCTION_SPLIT:
        where = f"{shown}:{node.lineno} {node.name}"
        report.failures.append(f"{where} has {lines} lines; split it at {FUNCTION_SPLIT}")


def _median(values: list[int]) -> int:
    return round(statistics.median(values)) if values else 0


def _percentile_90(values: list[int]) -> int:
    return sorted(values)[int(len(values) * 0.9)]


def main() -> int:
    """Print the report; the exit code says whether the house is in order."""
    report = inspect(Path(__file__).resolve().parent.parent)
    lines = [f"warning: {text}" for text in report.warnings] + [f"error: {text}" for text in report.failures]
    sys.stdout.write("\n".join([*lines, report.summary()]) + "\n")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
