"""The counters in bus.db, read by a separate connection, to compare them with the files."""

from __future__ import annotations

from pathlib import Path

from posthouse.sqlite.connection import open_reader


def depth_counter(root: Path, subject: str) -> int:
    """How many messages bus.db counts for an endpoint."""
    db = open_reader(root / "bus.db")
    try:
        depth: int = db.execute("SELECT depth FROM endpoints WHERE subject = ?", (subject,)).get
        return depth
    finally:
        db.close()
