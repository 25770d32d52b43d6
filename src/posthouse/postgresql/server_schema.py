"""Schemas on PostgreSQL as numbered SQL files, applied forward only.

The component and its files are those of posthouse.sqlite.schema. Each file runs in one transaction together with the
update of the version, under an advisory lock: relays that start together migrate once. A database of a newer posthouse
is refused unchanged. Tables of other programs in the same database are left alone.
"""

from __future__ import annotations

import psycopg

from posthouse.model.errors import error
from posthouse.postgresql.server_connection import ServerConnection, is_of_server, open_writer_session, translate
from posthouse.postgresql.store_url import shown_url
from posthouse.sqlite.schema import Component

MIGRATION_LOCK = 0x706F7374_00000002
_CREATE_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (component text PRIMARY KEY, version integer NOT NULL)"
_VERSION = "SELECT version FROM schema_versions WHERE component = $1"
_SAVE_VERSION = (
    "INSERT INTO schema_versions VALUES ($1, $2) ON CONFLICT (component) DO UPDATE SET version = excluded.version"
)


def migrate_server(url: str, component: Component) -> None:
    """Apply the missing migrations, or refuse the database."""
    session = open_writer_session(url)
    number = 0
    try:
        session.queue("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
        session.queue(_CREATE_VERSIONS)
        version = session.value(_VERSION, component.name) or 0
        known = len(component.migrations)
        if version > known:
            path = shown_url(url)
            raise error("store_schema_newer", path=path, component=component.name, found=version, known=known)
        for number in range(version + 1, known + 1):
            _apply(session, component, number)
    except psycopg.Error as exc:
        if is_of_server(exc) or exc.sqlstate == "42501":
            raise translate(exc, url) from exc
        raise error(
            "store_migration_failed", path=shown_url(url), component=component.name, number=number, reason=str(exc)
        ) from exc
    finally:
        session.close()


def _apply(session: ServerConnection, component: Component, number: int) -> None:
    session.queue("BEGIN")
    try:
        session.run_script(component.migrations[number - 1])
        session.queue(_SAVE_VERSION, component.name, number)
    except BaseException:
        session.close()  # the server rolls back
        raise
    session.queue("COMMIT")
