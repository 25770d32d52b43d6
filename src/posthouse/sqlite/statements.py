"""SQL statements: named in .sql files under ``-- :name of_the_statement``, and bulk inserts.

Modules bind statements at import, so a missing one fails then and not when it first runs. Each step of a statement
releases the interpreter lock and has to acquire it again; beside a busy event loop that costs more than the row. So
BulkInsert writes rows in groups of fixed sizes, each size one prepared statement.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import chain
from typing import Any

import apsw

_NAME = re.compile(r"^-- :name ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)


class Statements:
    """The statements of one .sql file, as attributes."""

    def __init__(self, package: str, file: str) -> None:
        self._source = f"{package}/{file}"
        text = files(package).joinpath(file).read_text(encoding="utf-8")
        names = list(_NAME.finditer(text))
        ends = [match.start() for match in names[1:]] + [len(text)]
        texts = {match[1]: text[match.end() : end].strip() for match, end in zip(names, ends, strict=True)}
        if len(texts) != len(names):
            raise ValueError(f"a statement is named twice in {self._source}")
        self._names = frozenset(texts)
        vars(self).update(texts)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement {name!r} in {self._source}")

    def names(self) -> frozenset[str]:
        """Return the names of all statements in the file."""
        return self._names


_SIZES = (64, *range(16, 0, -1))  # few statements to prepare; any number of rows needs few executions


class BulkInsert:
    """An INSERT of any number of rows; `head` ends with VALUES, `tail` may hold an ON CONFLICT clause."""

    def __init__(self, head: str, columns: int, tail: str = "") -> None:
        row = "(" + ", ".join("?" * columns) + ")"
        self._texts = {size: f"{head} {', '.join([row] * size)} {tail}" for size in _SIZES}

    def run(self, db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert the rows in order."""
        start, left = 0, len(rows)
        if (whole := self._texts.get(left)) is not None:
            db.execute(whole, tuple(chain.from_iterable(rows)))
            return
        for size in _SIZES:
            text = self._texts[size]
            while left >= size:
                db.execute(text, tuple(chain.from_iterable(rows[start : start + size])))
                start += size
                left -= size
