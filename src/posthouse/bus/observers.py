"""Observers of dead letters: told of every one, whichever process made it, in the order of the journal.

A failing observer disturbs nobody. A letter that was sent again before it could be read is told from its record,
without its envelope.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from posthouse.bus.dead_letters import read_letter
from posthouse.bus.follow import Follower
from posthouse.bus.results import Letter
from posthouse.journal.read import Record, read_extent
from posthouse.model.timestamps import format_utc

if TYPE_CHECKING:
    from posthouse.bus.session import Session

LetterObserver = Callable[[Letter], Awaitable[Any] | Any]


async def observe_letters(session: Session, observer: LetterObserver) -> Follower:
    """Tell `observer` of every dead letter from now on."""

    async def take(record: Record) -> None:
        body = record.decoded_body()
        id_ = record.ref or ""
        letter = read_letter(session, body["endpoint_hash"], id_) or Letter(
            id_, body["subject"], body["endpoint_hash"], body["reason"], format_utc(record.at_ns), None
        )
        answer = observer(letter)
        if inspect.isawaitable(answer):
            await answer

    session.ledger.flush()
    extent = await session.store.pool.run(read_extent)
    return session.followers.add(extent.head, ("bus.failed", "bus.dead"), take)
