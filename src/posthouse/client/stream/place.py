"""How far a subscription has come, and what to ask for to go on from there without a gap or a duplicate.

A relay gives cursors at EOSE and at CLOSED; events carry their seq only. The last cursor and the last seq together are
enough: ask from the cursor, drop what has a seq seen before. Where the cursor has the form that posthouse gives it,
one for the last seq is made, so that a long live phase is not sent again; correctness does not depend on it.
"""

from __future__ import annotations

from typing import Any

from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.model.errors import PosthouseError


class Place:
    """A place in a relay's history."""

    def __init__(self, cursor: str | None, limit: int | None) -> None:
        self._cursor = cursor
        self._limit = limit
        self._epoch = _epoch_of(cursor)
        #: seq of the last event taken; 0 before the first
        self.seq = 0

    def options(self) -> dict[str, Any]:
        """Return the options of the REQ that goes on from here."""
        if self._cursor is not None:
            return {"cursor": self._cursor}
        # once events were seen a limit would count from a newer end and leave a gap: take all, drop what was seen
        return {} if self._limit is None or self.seq else {"limit": self._limit}

    def passes(self, seq: int | None) -> bool:
        """Tell whether an event is new here."""
        return seq is None or seq > self.seq

    def advance(self, seq: int) -> str | None:
        """Note an event, and return the cursor behind it if one can be told."""
        self.seq = seq
        if self._epoch is not None:
            self._cursor = str(Cursor(self._epoch, seq))
        return self._cursor if self._epoch is not None else None

    def arrive(self, cursor: str | None) -> None:
        """Note a cursor that the relay gave: everything up to it has been sent."""
        if cursor is not None:
            self._cursor = cursor
            self._epoch = _epoch_of(cursor)


def _epoch_of(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        return parse_cursor(cursor).epoch
    except PosthouseError:
        return None
