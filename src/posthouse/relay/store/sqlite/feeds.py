"""Feed views: the versioned contract for readers outside, by name.

If you change a feed: 1. a migration that adds its next version beside the old one, 2. docs/reference, 3. the
pipeline's reader.
"""

from __future__ import annotations

from typing import Any

import apsw

from posthouse.model.errors import error

#: feed -> the view that is its current version
FEEDS = {
    "journal": "feed_journal_v1",
    "events": "feed_events_v1",
    "deliveries": "feed_deliveries_v1",
    "locks": "feed_locks_v1",
}


def read_feed(db: apsw.Connection, name: str, after_seq: int, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and rows after a seq, oldest first."""
    view = FEEDS.get(name)
    if view is None:
        raise error("feed_unknown", feed=name)
    columns: list[Any] = db.execute("SELECT name FROM pragma_table_info(?)", (view,)).fetchall()
    # the view's name comes from the table above, never from the caller
    rows = db.execute(f"SELECT * FROM {view} WHERE seq > ? ORDER BY seq LIMIT ?", (after_seq, limit)).fetchall()
    return [name for (name,) in columns], rows
