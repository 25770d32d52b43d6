"""Selecting messages of an inbox by position, time, sender, topic or words; and the full-text index.

Unread mail is given oldest first, so a reader that marks what it has read always gets the next messages. A page is
selected by position, never by offset: messages that arrive meanwhile shift nothing. The full-text index is filled in
batches behind the inbox and is complete before a search uses it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.errors import error
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.inbox", "selection.sql")
INDEX_ROWS = 500  # per transaction: some milliseconds
SEARCH_MAX_CHARACTERS = 256
#: a quoted phrase, or a word; a star after it matches the beginning of words
_TERM = re.compile(r'"([^"]*)"(\*?)|([^\s"]+)')


class InboxFilter(NamedTuple):
    """Which messages of an inbox to select; all conditions must hold."""

    #: only messages after this position
    after: int = 0
    #: only messages before this position
    before: int | None = None
    #: only messages received at or after this wall time
    since_ns: int = 0
    #: only messages received before this wall time
    until_ns: int | None = None
    topic: str | None = None
    sender: str | None = None
    #: agent of the sender; None: any
    from_agent: str | None = None
    is_unread: bool = False
    #: only messages that may wake an agent, as `InboxItem.wakes` says
    is_waking: bool = False
    #: expression of the full-text index
    search: str | None = None
    #: only these messages, by their message ids
    message_ids: frozenset[str] | None = None
    is_newest_first: bool = False
    limit: int = 100
    #: whose inbox; "" for the default inbox
    agent: str = DEFAULT_INBOX

    @property
    def has_conditions(self) -> bool:
        """True if mail of some senders, topics or times is left out."""
        return any((self.topic, self.sender, self.search, self.message_ids, self.since_ns, self.until_ns, self.before))

    def condition(self) -> tuple[str, list[int | str]]:
        """Return the WHERE clause and its values."""
        given: tuple[tuple[str, int | str | None], ...] = (
            ("agent = ?", self.agent),
            ("inbox_agent.position > ?", self.after),
            ("inbox_agent.position < ?", self.before),
            ("received_at_ns >= ?", self.since_ns or None),
            ("received_at_ns < ?", self.until_ns),
            ("topic = ?", self.topic),
            ("sender = ?", self.sender),
            ("from_agent = ?", self.from_agent),
            (SQL.found, self.search),
            (SQL.listed, None if self.message_ids is None else msgspec.json.encode(sorted(self.message_ids)).decode()),
        )
        conditions = [text for text, value in given if value is not None]
        if self.is_unread:
            conditions.append("read_at_ns IS NULL")
        if self.is_waking:
            conditions.append("is_failure = 0 AND undecryptable IS NULL")
        return " AND ".join(conditions), [value for _text, value in given if value is not None]


def select_rows(db: apsw.Connection, columns: str, wanted: InboxFilter) -> list[tuple[Any, ...]]:
    """Return the rows of a page."""
    where, values = wanted.condition()
    order = "DESC" if wanted.is_newest_first else "ASC"
    if wanted.is_unread:  # otherwise SQLite takes the primary key and scans all mail that was read
        columns = columns.replace("FROM inbox_agent JOIN", "FROM inbox_agent INDEXED BY inbox_agent_unread JOIN")
    query = f"{columns} WHERE {where} ORDER BY inbox_agent.position {order} LIMIT ?"
    return list(db.execute(query, (*values, wanted.limit)))


def newest_position(db: apsw.Connection) -> int:
    """Return the position of the newest message, zero if there is none."""
    found: Any = db.execute(SQL.newest_position).get
    return int(found)


def search_expression(text: str) -> str:
    """Return the expression that finds messages with every word and every "quoted phrase" of a text.

    A star after a word or phrase matches any ending. Everything else in the text is data, never an operator.
    """
    if len(text) > SEARCH_MAX_CHARACTERS:
        raise error("parameter_invalid", name="search", reason=f"it has more than {SEARCH_MAX_CHARACTERS} characters")
    terms = []
    for phrase, star, word in _TERM.findall(text.replace("\0", " ")):
        words = phrase or word.rstrip("*")
        if any(character.isalnum() for character in words):
            terms.append(f'"{words}"' + ("*" if star or word.endswith("*") else ""))
    if not terms:
        raise error("parameter_invalid", name="search", reason="it has no word to search for")
    return " ".join(terms)


def index_messages(tx: JournalTransaction) -> int:
    """Add the next messages to the full-text index; return how many, zero once none is missing."""
    rows = list(tx.db.execute(SQL.unindexed, (INDEX_ROWS,)))
    if rows:
        tx.db.executemany(SQL.index_row, rows)
        tx.db.execute(SQL.set_indexed_through, (rows[-1][0],))
    return len(rows)
