"""Messages that replace an earlier one of their sender: they supersede it, or withdraw it.

Only the same agent of the same node replaces a message, whatever the meta says. Rows of agents that have not read the
earlier message are closed: no list of unread mail, count or hook shows them. An agent that has read it keeps it and
gets the later message as mail. A withdrawal has no other content, so only agents that have read the earlier message get
it. The order in which the two arrive makes no difference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from posthouse.journal.append import JournalTransaction
from posthouse.model.freshness import Freshness
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.inbox", "replacing.sql")


class StoredMessage(NamedTuple):
    """The fields of a newly stored message that replacing uses."""

    position: int
    id: str
    message_id: str
    sender: str
    from_agent: str
    agents: tuple[str, ...]


def replace_messages(tx: JournalTransaction, stored: StoredMessage, said: Freshness) -> tuple[str, ...]:
    """Close the message that a stored one replaces, or the stored one if it was replaced; return its recipients."""
    agents = stored.agents
    if said.withdraws is not None:
        agents = _withdraw(tx, stored, said.withdraws)
    elif said.supersedes is not None:
        _replace(tx, stored, said.supersedes, is_withdrawn=False)
    successor: Any = tx.db.execute(SQL.successor, (stored.message_id, stored.sender, stored.from_agent)).fetchone()
    if successor is None:
        return agents
    replaced_by, is_withdrawn = successor
    _close(tx, stored.position, replaced_by, is_withdrawn=bool(is_withdrawn))
    return ()


def _withdraw(tx: JournalTransaction, stored: StoredMessage, message_id: str) -> tuple[str, ...]:
    position = _replace(tx, stored, message_id, is_withdrawn=True)
    readers = set() if position is None else {agent for (agent,) in tx.db.execute(SQL.readers, (position,))}
    for agent in stored.agents:
        if agent not in readers:
            tx.db.execute(SQL.close_for, {"now_ns": tx.now_ns, "position": stored.position, "agent": agent})
    return tuple(agent for agent in stored.agents if agent in readers)


def _replace(tx: JournalTransaction, stored: StoredMessage, message_id: str, *, is_withdrawn: bool) -> int | None:
    """Close the earlier message; return its position, None if it is not here or is not this sender's."""
    position: Any = tx.db.execute(SQL.position_of, (message_id, stored.sender, stored.from_agent)).get
    if position is None or position == stored.position:
        return None
    _close(tx, position, stored.id, is_withdrawn=is_withdrawn)
    return int(position)


def _close(tx: JournalTransaction, position: int, replaced_by: str, *, is_withdrawn: bool) -> None:
    tx.db.execute(SQL.note_replaced, (replaced_by, is_withdrawn, position))
    tx.db.execute(SQL.close_unread, {"now_ns": tx.now_ns, "position": position}).fetchall()
