"""Writing many rows with few statements.

Each step of a statement gives the interpreter lock away and has to win it back; with a busy event loop beside the
writer that costs more than the row. So rows go in groups of fixed sizes, each size one prepared statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import apsw

_SIZES = (64, *range(16, 0, -1))  # few texts to prepare; a handful of rows, or hundreds, are few statements


class BulkInsert:
    """An INSERT of any number of rows; `head` ends with VALUES, `tail` may hold an ON CONFLICT clause."""

    def __init__(self, head: str, columns: int, tail: str = "") -> None:
        row = "(" + ", ".join("?" * columns) + ")"
        self._texts = {size: f"{head} {', '.join([row] * size)} {tail}" for size in _SIZES}

    def run(self, db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert the rows in order."""
        start, left = 0, len(rows)
        if (whole := self._texts.get(left)) is not None:
            db.execute(whole, tuple(chain.from_iterable(rows)))
            return
        for size in _SIZES:
            text = self._texts[size]
            while left >= size:
                db.execute(text, tuple(chain.from_iterable(rows[start : start + size])))
                start += size
                left -= size
