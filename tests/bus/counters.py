"""The counters in bus.db, read by a separate connection, to compare them with the files."""

from __future__ import annotations

import json
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


def counted_letters(root: Path, hash_: str) -> tuple[int, int, int, int]:
    """Refused letters with their bytes, then those of accepted messages, as bus.db counts them."""
    db = open_reader(root / "bus.db")
    try:
        found = db.execute(
            "SELECT refused, refused_bytes, failed, failed_bytes FROM letter_counts"
            " LEFT JOIN endpoints ON endpoints.number = letter_counts.endpoint WHERE coalesce(hash, 'unrouted') = ?",
            (hash_,),
        ).fetchone()
    finally:
        db.close()
    return found or (0, 0, 0, 0)


def letters_on_disk(root: Path, hash_: str) -> tuple[int, int, int, int]:
    """The same, as the files say."""
    folder = (root / "unrouted" if hash_ == "unrouted" else root / "mailboxes" / hash_) / "failed"
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for path in folder.iterdir():
        data = path.read_bytes()
        sizes["refused" in json.loads(data)].append(len(data))
    return len(sizes[True]), sum(sizes[True]), len(sizes[False]), sum(sizes[False])
