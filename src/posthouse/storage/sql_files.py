"""SQL in files of a package: named statements, and the numbered migrations of a component.

A statement follows a line ``-- :name of_the_statement``. Modules bind statements at import, so a missing one fails then
and not when it first runs. A component keeps its migrations in ``<package>/migrations/NNNN_name.sql``; each database
has its own way to apply them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import get_data

_NAME = re.compile(r"^-- :name ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)


class Statements:
    """The statements of one .sql file, as attributes."""

    def __init__(self, package: str, file: str) -> None:
        self._source = f"{package}/{file}"
        top, *folders = package.split(".")
        data = get_data(top, "/".join((*folders, file)))  # also from a zip, as on Spark's workers
        assert data is not None
        text = data.decode()
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


@dataclass(frozen=True)
class Component:
    """A part of a schema: a name and the package that holds its migrations."""

    name: str
    package: str

    @cached_property
    def migrations(self) -> tuple[str, ...]:
        """Return the migrations in order; number n is at position n - 1."""
        folder = Path(import_module(self.package).__path__[0])  # importlib.resources would take half a megabyte
        found = sorted(folder.glob("migrations/*.sql"))
        for position, file in enumerate(found, start=1):
            if int(file.name.split("_", 1)[0]) != position:
                raise ValueError(f"{self.package}: migration {file.name} is out of order")
        return tuple(file.read_text(encoding="utf-8") for file in found)
