"""Schemas as numbered SQL files, applied forward only.

A store is made of components (the journal, then what the store adds), each with its own numbered migrations in
``<package>/migrations/NNNN_name.sql``. Each file runs in one transaction together with the note that it ran; a
store that holds data is backed up before. A store written by a newer posthouse is refused untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw

from posthouse.model.errors import error
from posthouse.sqlite.backup import copy_database

APPLICATION_ID = 0x706F7374  # "post": tells our files from any other SQLite database

_CREATE_VERSIONS = (
    "CREATE TABLE IF NOT EXISTS schema_versions (component TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT"
)


@dataclass(frozen=True)
class Component:
    """A part of a schema: a name and the package that holds its migrations."""

    name: str
    package: str

    @cached_property
    def migrations(self) -> tuple[str, ...]:
        """Return the migrations in order; number n is at position n - 1."""
        folder = files(self.package).joinpath("migrations")
        found = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
        for position, file in enumerate(found, start=1):
            if int(file.name.split("_", 1)[0]) != position:
                raise ValueError(f"{self.package}: migration {file.name} is out of order")
        return tuple(file.read_text(encoding="utf-8") for file in found)


def migrate(db: apsw.Connection, path: Path, components: tuple[Component, ...]) -> None:
    """Bring the schema of `db` up to date, or refuse it."""
    versions = _versions(db, path, components)
    _refuse_newer(path, components, versions)
    pending = [c for c in components if versions.get(c.name, 0) < len(c.migrations)]
    if not pending:
        return
    if any(versions.values()):
        copy_database(db, _backup_name(path, versions))
    for component in pending:
        for number in range(versions.get(component.name, 0) + 1, len(component.migrations) + 1):
            _apply(db, component, number)


def _versions(db: apsw.Connection, path: Path, components: tuple[Component, ...]) -> dict[str, int]:
    """Return the version of each component; claims an empty file, refuses a foreign one."""
    application = db.pragma("application_id")
    has_tables = db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").get
    if application != APPLICATION_ID and has_tables:
        raise error("store_not_ours", path=str(path), expected=components[-1].name, reason="a foreign database")
    if not has_tables:
        _claim(db)
    rows: Any = db.execute("SELECT component, version FROM schema_versions").fetchall()
    versions: dict[str, int] = dict(rows)
    foreign = versions.keys() - {component.name for component in components}
    if foreign:
        reason = f"it holds {', '.join(sorted(foreign))}"
        raise error("store_not_ours", path=str(path), expected=components[-1].name, reason=reason)
    return versions


def _claim(db: apsw.Connection) -> None:
    """Make an empty file ours; harmless when another process does so at the same moment."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.pragma("application_id", APPLICATION_ID)
        db.execute(_CREATE_VERSIONS)
    finally:
        db.execute("COMMIT")


def _refuse_newer(path: Path, components: tuple[Component, ...], versions: dict[str, int]) -> None:
    for component in components:
        found, known = versions.get(component.name, 0), len(component.migrations)
        if found > known:
            raise error("store_schema_newer", path=str(path), component=component.name, found=found, known=known)


def _apply(db: apsw.Connection, component: Component, number: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        row = db.execute("SELECT version FROM schema_versions WHERE component = ?", (component.name,)).get
        if (row or 0) < number:  # else another process was faster
            db.execute(component.migrations[number - 1])
            db.execute("INSERT OR REPLACE INTO schema_versions VALUES (?, ?)", (component.name, number))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _backup_name(path: Path, versions: dict[str, int]) -> Path:
    label = "-".join(f"{name}{version}" for name, version in sorted(versions.items()))
    return path.with_name(f"{path.name}.before-migration-of-{label}")
