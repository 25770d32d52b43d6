"""Pruning: a prefix only, after a snapshot, and cursors below it are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from posthouse.journal.cursor import resolve_cursor
from posthouse.journal.digest import Record, canonical_line, digest_records
from posthouse.journal.prune import count_bytes, prune_prefix
from posthouse.journal.verify import verify_store
from posthouse.model.errors import PosthouseError
from tests.journal.facts import all_records, note, opened, refs


async def test_pruning_leaves_a_snapshot_and_the_rest(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        for n in range(1, 11):
            await store.writer.run(note(str(n)))
        old = str(store.extent().cursor(3))
        assert await store.writer.run(lambda tx: prune_prefix(tx, 6, {"locks": ["a"]})) == 6
        assert refs(store) == ["7", "8", "9", "10", "6"]
        snapshot = all_records(store)[-1]
        assert (snapshot.seq, snapshot.type) == (11, "journal.snapshot")
        assert snapshot.decoded_body() == {"through_seq": 6, "state": {"locks": ["a"]}}
        with pytest.raises(PosthouseError) as pruned:
            resolve_cursor(store.extent(), old)
        assert pruned.value.code == "cursor_pruned"
        assert pruned.value.fields["oldest_seq"] == 7
        assert resolve_cursor(store.extent(), None) == 6
    assert verify_store(tmp_path / "s.db") == []


@pytest.mark.parametrize("counted_after", [0, 4, 10])
async def test_size_of_the_journal_is_exact_when_asked_however_far_it_was_counted(
    tmp_path: Path, counted_after: int
) -> None:
    with opened(tmp_path / "s.db") as store:
        for n in range(1, 11):
            await store.writer.run(note(str(n), padding=100 * n))
            if n == counted_after:
                await store.writer.run(count_bytes)
        await store.writer.run(lambda tx: prune_prefix(tx, 6, {}))
        state = await store.writer.run(count_bytes)
        assert state.body_bytes == sum(len(record.body.encode()) for record in all_records(store))
    assert verify_store(tmp_path / "s.db") == []


async def test_pruning_what_is_gone_or_not_there_yet(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        await store.writer.run(note("1"))
        assert await store.writer.run(lambda tx: prune_prefix(tx, 1, {})) == 1
        assert await store.writer.run(lambda tx: prune_prefix(tx, 1, {})) == 0
        with pytest.raises(PosthouseError):
            await store.writer.run(lambda tx: prune_prefix(tx, 99, {}))
        assert store.extent().head == 2
    assert verify_store(tmp_path / "s.db") == []


async def test_records_of_the_same_transaction_can_be_pruned(tmp_path: Path) -> None:
    def work(tx: object) -> int:
        from posthouse.journal.append import JournalTransaction

        assert isinstance(tx, JournalTransaction)
        return prune_prefix(tx, note("just now")(tx), {})

    with opened(tmp_path / "s.db") as store:
        assert await store.writer.run(work) == 1
        assert [record.type for record in all_records(store)] == ["journal.snapshot"]
    assert verify_store(tmp_path / "s.db") == []


async def test_the_digest_is_over_canonical_lines(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        for n in range(1, 6):
            await store.writer.run(note(str(n)))
        lines = b"".join(canonical_line(record) for record in all_records(store)[1:4])
        assert digest_records(all_records(store)[1:4]) == blake3(lines).hexdigest()
        assert digest_records(all_records(store)[1:5]) != blake3(lines).hexdigest()


def test_the_canonical_line_is_fixed() -> None:
    record = Record(7, 1_700_000_000_000_000_001, "config.changed", None, "a", "ü", '{"changes":{}}')
    assert canonical_line(record).decode() == (
        '{"actor":"a","at_ns":"1700000000000000001","body":"{\\"changes\\":{}}","mesh":null,"ref":"ü","seq":7,'
        '"type":"config.changed"}\n'
    )
