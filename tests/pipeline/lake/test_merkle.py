"""The Merkle root over rows: any change alters it, and the range alone determines the blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from blake3 import blake3

from posthouse.journal.digest import Record, canonical_line, record_digest
from posthouse.model.merkle_tree import root
from posthouse.pipeline.connector.feeds import JOURNAL
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, blocks, leaf, leaves_of


def record(seq: int, body: str = "{}") -> Record:
    return Record(seq, 1_700_000_000_000_000_000 + seq, "config.changed", "main", None, f"r{seq}", body)


def table(records: list[Record]) -> pa.Table:
    return pa.Table.from_pylist([each._asdict() for each in records], schema=JOURNAL.schema())


def test_a_leaf_is_the_digest_of_the_digests_of_4096_seqs_and_was_that_of_their_lines() -> None:
    records = [record(seq) for seq in range(11, 11 + BLOCK_ROWS + 3)]
    parts = records[:BLOCK_ROWS], records[BLOCK_ROWS:]
    to = 10 + BLOCK_ROWS + 3
    expected = [blake3(b"".join(map(record_digest, part))).digest() for part in parts]
    assert leaves_of(table(records), 10, to) == expected
    assert root(expected) == blake3(b"\x01" + expected[0] + expected[1]).digest()
    of_lines = [blake3(b"".join(map(canonical_line, part))).digest() for part in parts]
    assert leaves_of(table(records), 10, to, version=1) == of_lines


def test_an_erased_row_counts_by_the_digest_that_was_kept() -> None:
    records = [record(seq, '{"text":"secret"}') for seq in range(1, 10)]
    whole = leaf(table(records))
    kept = {5: record_digest(records[4])}
    records[4] = record(5)
    assert leaf(table(records)) != whole
    assert leaf(table(records), kept=kept) == whole
    records[6] = record(7)
    assert leaf(table(records), kept=kept) != whole


def test_a_sparse_feed_has_a_leaf_for_every_block_also_where_it_holds_nothing() -> None:
    rows = table([record(2), record(3 * BLOCK_ROWS)])
    leaves = leaves_of(rows, 0, 3 * BLOCK_ROWS)
    assert [len(list(blocks(0, 3 * BLOCK_ROWS))), len(leaves)] == [3, 3]
    assert leaves[1] == blake3(b"").digest()


def test_one_altered_byte_changes_exactly_one_leaf_and_the_root() -> None:
    records = [record(seq) for seq in range(1, 3 * BLOCK_ROWS)]
    before = leaves_of(table(records), 0, 3 * BLOCK_ROWS - 1)
    records[BLOCK_ROWS + 7] = record(BLOCK_ROWS + 8, '{"a":1}')
    after = leaves_of(table(records), 0, 3 * BLOCK_ROWS - 1)
    assert [left == right for left, right in zip(before, after, strict=True)] == [True, False, True]
    assert root(before) != root(after)


def test_a_row_that_is_missing_or_doubled_changes_the_root() -> None:
    records = [record(seq) for seq in range(1, 100)]
    whole = root(leaves_of(table(records), 0, 99))
    assert root(leaves_of(table(records[:50] + records[51:]), 0, 99)) != whole
    assert root(leaves_of(table(records[:50] + records[49:]), 0, 99)) != whole


def test_leaves_cannot_be_moved_between_levels_of_the_tree() -> None:
    leaves = [bytes([number]) * 32 for number in range(4)]
    inner = [blake3(b"\x01" + leaves[0] + leaves[1]).digest(), blake3(b"\x01" + leaves[2] + leaves[3]).digest()]
    assert root(leaves) == root(inner)  # the same tree, seen from one level up
    assert root(leaves[:3]) == blake3(b"\x01" + inner[0] + leaves[2]).digest()


def test_the_vectors_of_the_protocol_hold() -> None:
    vectors = json.loads((Path(__file__).parents[3] / "docs" / "vectors" / "merkle.json").read_text())
    assert canonical_line(_vector_record(1)).decode() == vectors["line_of_1"]
    for each in vectors["ranges"]:
        rows = table([_vector_record(seq) for seq in range(each["after"] + 1, each["to"] + 1)])
        leaves = leaves_of(rows, each["after"], each["to"], each["version"])
        assert [leaf.hex() for leaf in leaves] == each["leaves"]
        assert root(leaves).hex() == each["root"]


def _vector_record(seq: int) -> Record:
    mesh = "main" if seq % 2 else None
    return Record(
        seq, 1_700_000_000_000_000_000 + seq, "config.changed", mesh, None, f"r{seq}", '{"changes":{"é\\n":1}}'
    )
