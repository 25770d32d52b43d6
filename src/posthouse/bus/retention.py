"""How long the journal of a bus lasts: thirty days and a gigabyte, or what the operator has set.

The oldest records go first, a few at a time so that nobody waits for it, each time below a snapshot of the
endpoints. What the bus needs of the past lives in its own tables and files; the index is made anew when it
lagged behind what went. With a lake nothing goes that the lake has not committed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from posthouse.bus.page import Page, read_depths
from posthouse.bus.statements import SQL
from posthouse.files.home import home_directory
from posthouse.journal.prune import prunable_through, prune_prefix
from posthouse.model.errors import error
from posthouse.model.limits import DAY_S, JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES, SECOND_NS
from posthouse.model.settings import SETTINGS, resolve
from posthouse.model.settings.resolve import flatten

_AT_ONCE = 500  # records per transaction: a few milliseconds
_PER_ENDPOINT = 4  # more records go than endpoints stand in the snapshot, else pruning would not pay
_PART_EVERY_NS = DAY_S * SECOND_NS  # less than a whole bite goes once a day: each costs a snapshot
_SETTINGS = {name: SETTINGS[name] for name in ("journal.keep_days", "journal.max_bytes", "journal.lake")}


@dataclass(frozen=True, slots=True)
class Retention:
    """What of a journal may go."""

    keep_days: float = JOURNAL_KEEP_DAYS
    max_bytes: int = JOURNAL_MAX_BYTES
    #: set: only what the lake has committed
    lake: str | None = None


def user_retention(environ: Mapping[str, str] = os.environ) -> Retention:
    """Return what config.toml and the environment of this user say; raises when either is not valid."""
    path = home_directory(environ) / "config.toml"
    try:
        file: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        file = {}
    except (OSError, ValueError) as failure:
        raise error("config_unreadable", path=str(path), reason=str(failure)) from failure
    given = {name: value for name, value in flatten(file).items() if name in _SETTINGS}
    values = {name: resolved.value for name, resolved in resolve(given, environ, settings=_SETTINGS).items()}
    return msgspec.convert({name.removeprefix("journal."): value for name, value in values.items()}, Retention)


def prune_journal(page: Page, retention: Retention) -> int:
    """Remove a few of the oldest records if they are too old or too many; return how many went."""
    pruned_through, snapshot_seq, body_bytes = page.db.execute(SQL.journal_extent).fetchone() or (0, None, 0)
    bite = max(_AT_ONCE, _PER_ENDPOINT * len(page.book.by_number))
    through = min(pruned_through + bite, prunable_through(page.tx, retention.lake))
    if through <= pruned_through:
        return 0
    if body_bytes > retention.max_bytes:
        return _prune_by_size(page, pruned_through, through, body_bytes - retention.max_bytes)
    horizon_ns = page.now_ns - round(retention.keep_days * DAY_S * SECOND_NS)
    through = page.db.execute(SQL.journal_older, (pruned_through, through, horizon_ns)).get
    if through is None or (through < pruned_through + bite and _was_pruned_lately(page, snapshot_seq)):
        return 0
    return prune_prefix(page.tx, through, _state(page))


def _prune_by_size(page: Page, pruned_through: int, most: int, excess: int) -> int:
    """Prune what is too much, unless the snapshot would take as much room as it makes."""
    state = _state(page)
    snapshot_bytes = len(msgspec.json.encode({"through_seq": most, "state": state}))
    freed, through = 0, pruned_through
    rows: Any = page.db.execute(SQL.journal_sizes, (pruned_through, most))
    for seq, size in rows:
        freed, through = freed + size, seq
        if freed >= excess + snapshot_bytes:
            break
    return 0 if freed <= 2 * snapshot_bytes else prune_prefix(page.tx, through, state)


def _was_pruned_lately(page: Page, snapshot_seq: int | None) -> bool:
    at_ns = None if snapshot_seq is None else page.db.execute(SQL.journal_at, (snapshot_seq,)).get
    return at_ns is not None and page.now_ns - at_ns < _PART_EVERY_NS


def _state(page: Page) -> dict[str, Any]:
    return {"depths": read_depths(page.db)}
