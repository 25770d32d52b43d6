"""Named SQL: statements live in .sql files, each under a line ``-- :name of_the_statement``.

A statement that is asked for but not there fails when its module is imported, not when it first runs.
"""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- :name ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)


class Statements:
    """The statements of one .sql file, as attributes."""

    def __init__(self, package: str, file: str) -> None:
        self._source = f"{package}/{file}"
        text = files(package).joinpath(file).read_text(encoding="utf-8")
        names = list(_NAME.finditer(text))
        ends = [match.start() for match in names[1:]] + [len(text)]
        self._texts = {match[1]: text[match.end() : end].strip() for match, end in zip(names, ends, strict=True)}
        if len(self._texts) != len(names):
            raise ValueError(f"a statement is named twice in {self._source}")

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"no statement {name!r} in {self._source}") from None

    def names(self) -> frozenset[str]:
        """Return the names of all statements in the file."""
        return frozenset(self._texts)
