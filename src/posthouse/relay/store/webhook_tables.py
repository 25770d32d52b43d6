"""Webhooks in a store: WebhookUnit inside a transaction, WebhookReads outside the writer.

Both stores keep rows as JSON, under statements of the same names. This module interprets the rows; a store only runs
its statements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from posthouse.relay.wire.webhook_rows import IncomingHookRow, ParkedEvent, WebhookRow
from posthouse.storage.sql_files import Statements

_decode_webhook = msgspec.json.Decoder(WebhookRow).decode
_decode_parked = msgspec.json.Decoder(ParkedEvent).decode
_decode_incoming = msgspec.json.Decoder(IncomingHookRow).decode


def _encode(row: WebhookRow | ParkedEvent | IncomingHookRow) -> str:
    return msgspec.json.encode(row).decode()


class WebhookUnit(ABC):
    """Webhooks, inside the writer's transaction."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def find(self, webhook_id: str) -> WebhookRow | None:
        """Return a webhook, or None."""
        found = self._value(self._sql.find, webhook_id)
        return None if found is None else _decode_webhook(found)

    def save(self, row: WebhookRow) -> None:
        """Add or replace a webhook."""
        self._run(self._sql.save, row.webhook_id, row.mesh, _encode(row))

    def remove(self, webhook_id: str) -> None:
        """Remove a webhook with its parked events."""
        self._run(self._sql.remove, webhook_id)
        self._run(self._sql.remove_parked, webhook_id)

    def move_creator(self, node: str, successor: str) -> None:
        """Move the webhooks and incoming hooks of a node to its successor."""
        self._run(self._sql.move_creator, node, successor)
        self._run(self._sql.move_incoming, node, successor)

    def park(self, parked: ParkedEvent) -> None:
        """Keep an event that the receiver refused."""
        self._run(self._sql.park, parked.webhook_id, parked.seq, _encode(parked))

    def unpark(self, webhook_id: str, seq: int) -> None:
        """Forget a parked event."""
        self._run(self._sql.unpark, webhook_id, seq)

    def save_incoming(self, row: IncomingHookRow) -> None:
        """Add or replace an incoming hook."""
        self._run(self._sql.save_incoming, row.hook_id, row.mesh, row.token_hash, _encode(row))

    def remove_incoming(self, hook_id: str) -> None:
        """Remove an incoming hook."""
        self._run(self._sql.remove_incoming, hook_id)

    @abstractmethod
    def _run(self, statement: str, *values: Any) -> None: ...

    @abstractmethod
    def _value(self, statement: str, *values: Any) -> Any: ...


class WebhookReads(ABC):
    """Webhooks, as committed."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    async def all(self) -> Sequence[WebhookRow]:
        """Return every webhook."""
        return [_decode_webhook(body) for (body,) in await self._rows(self._sql.all)]

    async def find(self, webhook_id: str) -> WebhookRow | None:
        """Return a webhook, or None."""
        found = await self._rows(self._sql.find, webhook_id)
        return _decode_webhook(found[0][0]) if found else None

    async def parked(self, webhook_id: str, limit: int) -> Sequence[ParkedEvent]:
        """Return the parked events of a webhook in the order of their seqs."""
        return [_decode_parked(body) for (body,) in await self._rows(self._sql.parked, webhook_id, limit)]

    async def parked_counts(self) -> dict[str, int]:
        """Return the number of parked events by webhook."""
        return {webhook_id: int(count) for webhook_id, count in await self._rows(self._sql.parked_counts)}

    async def incoming(self) -> Sequence[IncomingHookRow]:
        """Return every incoming hook."""
        return [_decode_incoming(body) for (body,) in await self._rows(self._sql.all_incoming)]

    async def find_incoming(self, token_hash: bytes) -> IncomingHookRow | None:
        """Return the incoming hook of a token, or None."""
        found = await self._rows(self._sql.find_incoming, token_hash)
        return _decode_incoming(found[0][0]) if found else None

    @abstractmethod
    async def _rows(self, statement: str, *values: Any) -> Sequence[Any]: ...
