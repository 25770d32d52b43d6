"""Appending: seq from the head, given back by what fails, shared by all who write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.journal.append import JournalTransaction
from posthouse.journal.read import read_after
from posthouse.journal.verify import verify_store
from tests.journal.facts import all_records, failing, note, opened, opened_directly, refs


async def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    def work(tx: JournalTransaction) -> int:
        return tx.append("refused", mesh="main", actor="alice", ref="rate_limited", body={"key": "käse", "count": 3})

    with opened(tmp_path / "s.db") as store:
        assert await store.writer.run(work) == 1
        (record,) = all_records(store)
    assert record[2:6] == ("refused", "main", "alice", "rate_limited")
    assert record.decoded_body() == {"key": "käse", "count": 3}


async def test_undeclared_types_and_body_fields_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        with pytest.raises(KeyError):
            await store.writer.run(lambda tx: tx.append("nonsense.happened"))
        with pytest.raises(ValueError, match="secret"):
            await store.writer.run(lambda tx: tx.append("config.changed", body={"secret": 1}))
        assert refs(store) == []


async def test_an_item_sees_the_head_its_siblings_left(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        heads = await asyncio.gather(
            store.writer.run(note("a")),
            store.writer.run(lambda tx: tx.head),
            store.writer.run(lambda tx: (tx.append("config.changed"), tx.append("config.changed"))[1]),
            store.writer.run(lambda tx: tx.head),
        )
    assert list(heads) == [1, 1, 3, 3]


async def test_what_is_appended_can_be_read_in_its_transaction_after_a_flush(tmp_path: Path) -> None:
    def work(tx: JournalTransaction) -> list[str | None]:
        note("mine")(tx)
        tx.flush()
        return [record.ref for record in read_after(tx.db, 0, 10)]

    with opened(tmp_path / "s.db") as store:
        assert await store.writer.run(work) == ["mine"]


async def test_many_facts_at_once_count_like_single_ones(tmp_path: Path) -> None:
    facts = [("config.changed", None, None, str(n), '{"changes":"ü"}') for n in range(100)]
    with opened(tmp_path / "s.db") as store:
        await store.writer.run(note("first"))
        assert await store.writer.run(lambda tx: tx.append_many(facts)) == 2
        assert refs(store) == ["first", *(str(n) for n in range(100))]
    assert verify_store(tmp_path / "s.db") == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=12), max_size=6))
def test_whatever_fails_seq_has_no_gaps_and_is_commit_order(batches: list[list[bool]]) -> None:
    """Against an oracle: a list to which every item that does not fail appends itself."""
    import tempfile

    async def run(store_path: Path) -> None:
        expected: list[str | None] = []
        with opened(store_path) as store:
            for number, batch in enumerate(batches):
                names = [f"{number}/{position}" for position in range(len(batch))]
                works = [note(name) if ok else failing(name) for name, ok in zip(names, batch, strict=True)]
                answers = await asyncio.gather(*map(store.writer.run, works), return_exceptions=True)
                for name, answer in zip(names, answers, strict=True):
                    if isinstance(answer, int):
                        expected.append(name)
                        assert answer == len(expected)
            assert refs(store) == expected
            assert [record.seq for record in all_records(store)] == list(range(1, len(expected) + 1))
        assert verify_store(store_path) == []

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "s.db"))


async def test_two_stores_on_one_file_share_one_sequence(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "s.db") as one,
        opened(tmp_path / "s.db") as two,
        opened_directly(tmp_path / "s.db") as third,
    ):
        seqs = []
        for n in range(20):
            seqs.append(await one.writer.run(note(f"one {n}")))
            seqs.append(await two.writer.run(note(f"two {n}")))
            seqs.append(third.writer.run(note(f"third {n}")))
        assert seqs == list(range(1, 61))
        assert one.epoch == two.epoch == third.epoch
    assert verify_store(tmp_path / "s.db") == []


def test_a_seq_is_never_given_out_again_after_the_tail_is_deleted(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        for n in range(3):
            store.writer.run_blocking(note(str(n)))
        store.writer.run_blocking(lambda tx: tx.db.execute("DELETE FROM journal WHERE seq = 3").fetchall())
    with opened(tmp_path / "s.db") as store:
        assert store.writer.run_blocking(note("next")) == 4
