"""A process of its own that reads a store's file, as Spark's workers do; talks in lines with the test that started it.

history    -> the seq of the newest record
next       -> how many rows the next range of the journal has
"""

from __future__ import annotations

import sys
from pathlib import Path

from posthouse.pipeline.connector import feeds
from posthouse.pipeline.connector.feeds import JOURNAL
from posthouse.pipeline.connector.stores import FileStore


def main(path: Path) -> None:
    feeds.RANGE_ROWS = 10
    with FileStore(path) as store:
        ranges = store.read(JOURNAL, 0, 1_000)
        for line in sys.stdin:
            answer = store.history().head if line.strip() == "history" else next(ranges).num_rows
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
