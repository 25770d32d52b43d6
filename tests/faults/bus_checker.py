"""What must be true after the bus campaign; a finding is a sentence, no finding means that nothing was lost.

It reads ledgers, mailbox files and databases, not the memory of any process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from posthouse import Bus
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.journal.verify import verify_store
from posthouse.sqlite.connection import open_reader
from tests.bus.counters import depth_counter
from tests.bus.mailboxes import Mailbox
from tests.faults.audited import audit_findings
from tests.faults.bus_terms import SUBJECT, ids_in, lines_of

PAGE = 1_000


async def findings(folder: Path, publishers: tuple[str, ...]) -> list[str]:
    """Return everything that is wrong."""
    root = folder / "bus"
    published = {message_id for name in publishers for message_id in ids_in(folder / f"{name}.ledger")}
    handled = ids_in(folder / "server.ledger")
    found = [f"published but never handled: {message_id}" for message_id in sorted(published - handled)]
    found += verify_store(root / "bus.db")
    found += _journal(root, published, handled)
    found += _files(root)
    found += await _derived(root)
    found += audit_findings(root / "bus.db")
    return found


def _journal(root: Path, published: set[str], handled: set[str]) -> Iterator[str]:
    counts: dict[str, Counter[str]] = {"bus.published": Counter(), "bus.handled": Counter()}
    for record in _records(root / "bus.db"):
        if record.type in counts:
            assert record.ref is not None
            counts[record.type][record.ref] += 1
    told = counts["bus.published"]
    yield from (f"no bus.published record: {message_id}" for message_id in sorted(published - told.keys()))
    yield from (f"{count} bus.published records: {ref}" for ref, count in told.items() if count > 1)
    yield from (f"handled but not told as published: {ref}" for ref in sorted(handled - told.keys()))
    yield from (f"no bus.handled record: {ref}" for ref in sorted(published - counts["bus.handled"].keys()))


def _records(path: Path) -> Iterator[Record]:
    db = open_reader(path)
    try:
        seq = 0
        while page := read_after(db, seq, PAGE):
            yield from page
            seq = page[-1].seq
    finally:
        db.close()


def _files(root: Path) -> Iterator[str]:
    box = Mailbox(root, SUBJECT)
    for name in ("new", "cur", "failed"):
        left = box.names(name)
        if left:
            yield f"{len(left)} files left in {name}, first {left[0]}"


async def _derived(root: Path) -> list[str]:
    """Depth counter and index against the files."""
    box = Mailbox(root, SUBJECT)
    found = []
    async with Bus(root) as bus:
        depth = depth_counter(root, SUBJECT)
        if depth != box.depth:
            found.append(f"the depth counter says {depth}, the files {box.depth}")
        live = await _open_rows(bus)
        await bus.rebuild_index()
        rebuilt = await _open_rows(bus)
        if live != rebuilt:
            found.append(f"the live index has {len(live)} open rows, the rebuilt one {len(rebuilt)}")
    return found


async def _open_rows(bus: Bus) -> list[tuple[str, str]]:
    rows = [row for status in ("new", "cur", "dlq") for row in await bus.find_messages(status=status, limit=100_000)]
    return sorted((row.id, row.status) for row in rows)


def duplicates(folder: Path) -> int:
    """How often the server handled a message more than once; allowed, and worth knowing."""
    lines = lines_of(folder / "server.ledger")
    return len(lines) - len({message_id for _, message_id in lines})
