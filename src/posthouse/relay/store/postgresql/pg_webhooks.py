"""The statements of webhooks on PostgreSQL; posthouse.relay.store.webhook_tables says what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posthouse.postgresql.snapshot_reads import SnapshotReads
from posthouse.relay.store.postgresql.pg_journal import PgTransaction
from posthouse.relay.store.webhook_tables import WebhookReads, WebhookUnit
from posthouse.storage.sql_files import Component, Statements

_SCHEMA = "posthouse.relay.store.postgresql.schema.webhooks"
WEBHOOKS = Component("webhooks", _SCHEMA)
SQL = Statements(_SCHEMA, "webhooks.sql")


class PgWebhooks(WebhookUnit):
    """Webhooks in a transaction of PostgreSQL."""

    def __init__(self, tx: PgTransaction) -> None:
        super().__init__(SQL)
        self._tx = tx

    def _run(self, statement: str, *values: Any) -> None:
        self._tx.db.queue(statement, *values)

    def _value(self, statement: str, *values: Any) -> Any:
        return self._tx.db.value(statement, *values)


class PgWebhookReads(WebhookReads):
    """Webhooks as readers of PostgreSQL see them."""

    def __init__(self, reads: SnapshotReads) -> None:
        super().__init__(SQL)
        self._reads = reads

    async def _rows(self, statement: str, *values: Any) -> Sequence[Any]:
        return await self._reads.run(lambda db: db.rows(statement, *values))
