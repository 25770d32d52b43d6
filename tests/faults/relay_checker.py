"""What must be true after the relay campaign; a finding is a sentence, no finding means that nothing was lost.

It reads the store's file and the ledger, not the memory of any process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from posthouse.journal.verify import verify_store
from posthouse.relay.ops.maintenance import RULES
from posthouse.relay.store.sqlite.store import FILE_NAME
from posthouse.sqlite.connection import open_reader
from tests.faults.audited import audit_findings
from tests.faults.relay_campaign import KIND, Ledger


def check_campaign(data_dir: Path, ledger: Ledger) -> list[str]:
    """Return what is wrong."""
    path = data_dir / FILE_NAME
    stored = _stored(path)
    return [
        *verify_store(path, RULES),
        *_check_answers(ledger, stored),
        *_check_contents(path),
        *_check_subscribers(ledger, stored),
        *audit_findings(path),
    ]


def _stored(path: Path) -> list[tuple[int, str]]:
    db = open_reader(path)
    try:
        rows = db.execute("SELECT seq, lower(hex(id)) FROM events WHERE kind = ? ORDER BY seq", (KIND,)).fetchall()
        return [(int(str(seq)), str(event_id)) for seq, event_id in rows]
    finally:
        db.close()


def _check_answers(ledger: Ledger, stored: list[tuple[int, str]]) -> Iterator[str]:
    places = {event_id: seq for seq, event_id in stored}
    for event_id, seq in ledger.answered.items():
        if event_id not in places:
            yield f"lost: {event_id} was answered with seq {seq} and is not stored"
        elif places[event_id] != seq:
            yield f"moved: {event_id} was answered with seq {seq} and stored at {places[event_id]}"


def _check_contents(path: Path) -> Iterator[str]:
    db = open_reader(path)
    try:
        texts = db.execute("SELECT json_extract(raw, '$.content') FROM events WHERE kind = ?", (KIND,)).fetchall()
    finally:
        db.close()
    for text, count in Counter(str(text) for (text,) in texts).items():
        if count > 1:
            yield f"twice: {text!r} is stored {count} times"


def _check_subscribers(ledger: Ledger, stored: list[tuple[int, str]]) -> Iterator[str]:
    for name, seen in ledger.seen.items():
        missed = [event for event in stored if event not in set(seen)]
        if missed:
            yield f"missed: {name} did not see {len(missed)} events, the first at seq {missed[0][0]}"
        if len(seen) != len(set(seen)):
            yield f"repeated: {name} saw {len(seen) - len(set(seen))} events twice"
        if seen != sorted(seen):
            yield f"disorder: {name} saw events out of commit order"
