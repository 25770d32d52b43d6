"""Schemas on PostgreSQL as numbered SQL files, applied forward only.

Each file of a component runs in one transaction together with the update of the version, under an advisory lock: relays
that start together migrate once. A schema changes only while no relay uses it: each relay holds a session lock, which a
migration must have for itself. A database of a newer posthouse is refused unchanged. Tables of other programs in the
same database are left alone.
"""

from __future__ import annotations

import time

import psycopg

from posthouse.model.errors import error
from posthouse.postgresql.server_connection import ServerConnection, is_of_server, open_writer_session, translate
from posthouse.postgresql.store_url import shown_url
from posthouse.storage.sql_files import Component

MIGRATION_LOCK = 0x706F7374_00000002
_CREATE_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (component text PRIMARY KEY, version integer NOT NULL)"
_VERSION = "SELECT version FROM schema_versions WHERE component = $1"
_SAVE_VERSION = (
    "INSERT INTO schema_versions VALUES ($1, $2) ON CONFLICT (component) DO UPDATE SET version = excluded.version"
)


_PATIENCE_S = 2.0  # the server needs a moment to notice that a killed relay is gone
_RETRY_S = 0.1


def migrate_server(url: str, component: Component, users_lock: int) -> None:
    """Apply the missing migrations, or refuse the database; its users hold the advisory lock `users_lock`."""
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
        if version < known:
            wait_for_users(session, url, users_lock)
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


def require_schema(session: ServerConnection, url: str, component: Component) -> None:
    """Refuse a database whose schema is not that of this version, for a command that must not migrate it."""
    known = len(component.migrations)
    has_versions = session.value("SELECT to_regclass('schema_versions') IS NOT NULL")
    found = (session.value(_VERSION, component.name) if has_versions else None) or 0
    if found != known:
        reason = f"its schema {component.name} has version {found}, but this posthouse reads {known}"
        hint = "Use the posthouse of the relays that run on it. A relay of this version brings it up to date."
        raise error("store_unusable", path=shown_url(url), reason=reason, hint=hint)


def wait_for_users(session: ServerConnection, url: str, users_lock: int) -> None:
    """Take the lock of the database's users for this session alone, or raise store_in_use."""
    until_s = time.monotonic() + _PATIENCE_S
    while not session.value("SELECT pg_try_advisory_lock($1)", users_lock):
        if time.monotonic() >= until_s:
            raise error("store_in_use", path=shown_url(url), hint="Stop all relays of this database first.")
        time.sleep(_RETRY_S)


def _apply(session: ServerConnection, component: Component, number: int) -> None:
    session.queue("BEGIN")
    try:
        session.run_script(component.migrations[number - 1])
        session.queue(_SAVE_VERSION, component.name, number)
    except BaseException:
        session.close()  # the server rolls back
        raise
    session.queue("COMMIT")
