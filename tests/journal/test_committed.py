"""What the lake says it has committed of a store."""

from __future__ import annotations

from pathlib import Path

from posthouse.journal.cursor import DIRECTORY, note_committed, read_committed

EPOCH, OTHER = "a" * 32, "b" * 32


def test_lake_that_says_nothing_has_nothing(tmp_path: Path) -> None:
    assert read_committed(tmp_path / "nowhere", EPOCH) == 0
    note_committed(tmp_path, OTHER, 7)
    assert read_committed(tmp_path, EPOCH) == 0


def test_what_is_committed_never_goes_back(tmp_path: Path) -> None:
    note_committed(tmp_path, EPOCH, 7)
    note_committed(tmp_path, EPOCH, 5)
    assert read_committed(tmp_path, EPOCH) == 7
    note_committed(tmp_path, EPOCH, 9)
    assert read_committed(tmp_path, EPOCH) == 9


def test_file_that_cannot_be_understood_says_nothing(tmp_path: Path) -> None:
    note_committed(tmp_path, EPOCH, 7)
    path = tmp_path / DIRECTORY / f"{EPOCH}.json"
    for damaged in (b"", b"7", b'{"epoch":"' + OTHER.encode() + b'","seq":7}'):
        path.write_bytes(damaged)
        assert read_committed(tmp_path, EPOCH) == 0
