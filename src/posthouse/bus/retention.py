"""How long the journal of a bus lasts: thirty days, and no more than a gigabyte.

The oldest records go first, a few at a time so that nobody waits for it, each time below a snapshot of the
endpoints. What the bus needs of the past lives in its own tables and files; the index is made anew when it
lagged behind what went.
"""

from __future__ import annotations

from posthouse.bus.page import Page, read_depths
from posthouse.bus.statements import SQL
from posthouse.journal.prune import prune_prefix
from posthouse.model.limits import DAY_S, JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES, SECOND_NS

_AT_ONCE = 500  # records per transaction: a few milliseconds


def prune_journal(page: Page, keep_days: int = JOURNAL_KEEP_DAYS, max_bytes: int = JOURNAL_MAX_BYTES) -> int:
    """Remove a few of the oldest records if they are too old or too many; return how many went."""
    pruned_through, body_bytes = page.db.execute(SQL.journal_extent).fetchone() or (0, 0)
    through = pruned_through + _AT_ONCE
    if through >= page.tx.head:
        return 0
    at_ns = page.db.execute(SQL.journal_at, (through,)).get
    if body_bytes <= max_bytes and at_ns >= page.now_ns - keep_days * DAY_S * SECOND_NS:
        return 0
    return prune_prefix(page.tx, through, {"depths": read_depths(page.db)})
