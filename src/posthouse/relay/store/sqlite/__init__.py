"""The relay's store on SQLite."""

from posthouse.relay.store.sqlite.store import COMPONENTS, FILE_NAME, SqliteStore

__all__ = ["COMPONENTS", "FILE_NAME", "SqliteStore"]
