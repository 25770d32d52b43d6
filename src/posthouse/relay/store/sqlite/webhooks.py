"""The statements of webhooks on SQLite; posthouse.relay.store.webhook_tables says what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from posthouse.relay.store.webhook_tables import WebhookReads, WebhookUnit
from posthouse.sqlite.read_pool import ReadPool
from posthouse.storage.sql_files import Component, Statements

_SCHEMA = "posthouse.relay.store.sqlite.schema.webhooks"
WEBHOOKS = Component("webhooks", _SCHEMA)
SQL = Statements(_SCHEMA, "webhooks.sql")


class SqliteWebhooks(WebhookUnit):
    """Webhooks in a transaction of SQLite."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__(SQL)
        self._db = db

    def _run(self, statement: str, *values: Any) -> None:
        self._db.execute(statement, values)

    def _value(self, statement: str, *values: Any) -> Any:
        return self._db.execute(statement, values).get


class SqliteWebhookReads(WebhookReads):
    """Webhooks as readers of SQLite see them."""

    def __init__(self, pool: ReadPool) -> None:
        super().__init__(SQL)
        self._pool = pool

    async def _rows(self, statement: str, *values: Any) -> Sequence[Any]:
        return await self._pool.run(lambda db: list(db.execute(statement, values)))
