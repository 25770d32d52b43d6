"""/v1/outbox: look at rows, requeue or drop those that need an operator."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.daemon.ipc.call import Call

DEFAULT_LIMIT = 50
MAX_LIMIT = 500


class _Arguments(msgspec.Struct):
    status: Literal["pending", "inflight", "done", "dead", "aborted"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT


class _Requeue(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    new_client_message_id: str | None = None
    message: str | None = None


class _Drop(msgspec.Struct, forbid_unknown_fields=True):
    id: str


async def read(call: Call) -> Answer:
    """Return rows, newest first."""
    given = call.arguments(_Arguments)
    rows = await call.daemon.outbox.rows(given.status, given.limit)
    return json_answer({"items": [row.shown() for row in rows]})


async def inspect(call: Call) -> Answer:
    """Return one row with the chain of rows it was requeued from and into, oldest first."""
    row = await call.daemon.outbox.find(call.id)
    chain = await call.daemon.outbox.chain(row)
    return json_answer(row.shown() | {"chain": [each.shown() for each in chain]})


async def requeue(call: Call) -> Answer:
    """Replace a dead or pending row by a new one."""
    given = await call.body(_Requeue)
    answer = await call.daemon.sending.requeue(given.id, given.new_client_message_id, given.message)
    return json_answer(answer)


async def drop(call: Call) -> Answer:
    """Give up a dead or pending row."""
    row = await call.daemon.outbox.find((await call.body(_Drop)).id)
    await call.daemon.outbox.drop(row)
    return json_answer({"aborted_row_id": row.id})
