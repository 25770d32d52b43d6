"""kill -9 while events are accepted: what was answered is there, once, in the order of its connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.model.clock import SystemClock
from posthouse.model.event import decode_event
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.store.sqlite.store import SqliteStore
from tests.faults.accept_worker import AUTHORS, event_of
from tests.faults.audited import audit_findings
from tests.faults.campaign import chance, rounds
from tests.faults.child import Child
from tests.relay.authors import Author

Told = dict[tuple[int, int], int]


@pytest.mark.campaign
def test_answered_events_survive_kill_and_none_is_there_twice(tmp_path: Path) -> None:
    folder, luck = tmp_path / "relay", chance("accept")
    folder.mkdir(mode=0o700)
    told: Told = {}
    first = 0
    for _ in range(rounds(2, 20)):
        with Child("tests.faults.accept_worker", folder, first) as child:
            child.wait_lines(luck.randint(1, 1_500))
            compare(told, child.kill())
        assert check_relay(folder / "relay.db") == []
        stored = asyncio.run(stored_seqs(folder / "relay.db", told))
        assert {key: stored[key] for key in told} == told
        first = follow_on(stored)
    assert audit_findings(folder / "relay.db") == []


def compare(told: Told, lines: list[str]) -> None:
    """Take over what a run told; an event that was answered before gets the same seq again, as a duplicate."""
    for line in lines:
        author, number, seq, is_duplicate = (int(part) for part in line.split())
        former = told.get((author, number))
        assert former in (None, seq)
        assert is_duplicate or former is None
        told[author, number] = seq
    assert len(set(told.values())) == len(told)


async def stored_seqs(path: Path, told: Told) -> Told:
    """Return the seq of every event that is stored, of those told and of the next few."""
    store = SqliteStore(path, SystemClock())
    numbers = range(max((number for _, number in told), default=0) + 200)
    keys = [(author, number) for author in range(1, AUTHORS + 1) for number in numbers]
    signers = {author: Author(author) for author in range(1, AUTHORS + 1)}
    ids = {decode_event(event_of(signers[author], number)).id: (author, number) for author, number in keys}
    known = await store.known(list(ids))
    store.close()
    return {ids[id_]: seq for id_, seq in known.items()}


def follow_on(stored: Told) -> int:
    """Check that each connection's events are a prefix in order; return where the next run begins."""
    firsts = []
    for author in range(1, AUTHORS + 1):
        seqs = {number: seq for (who, number), seq in stored.items() if who == author}
        assert sorted(seqs) == list(range(len(seqs)))
        assert [seqs[number] for number in sorted(seqs)] == sorted(seqs.values())
        firsts.append(len(seqs))
    return min(firsts)
