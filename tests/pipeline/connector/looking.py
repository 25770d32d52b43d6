"""What a worker has loaded after it has read a source; in a module of its own, which loads nothing itself."""

from __future__ import annotations

import sys

from posthouse.pipeline.connector.feeds import JOURNAL
from posthouse.pipeline.connector.source_access import Access, read_history


def read_and_look(access: Access) -> list[str]:
    """Read a source and return the SQLite libraries that are loaded then."""
    history = read_history(access)
    with access.open() as store:
        for feed_rows in store.read(JOURNAL, 0, history.head):
            assert feed_rows.num_rows
    return sorted(name for name in sys.modules if name in ("apsw", "sqlite3"))
