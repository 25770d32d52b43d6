"""What the lake says it has committed of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.journal.cursor import DIRECTORY, lake_directory, note_committed, read_committed
from posthouse.pipeline.lake import Lake

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


def test_marks_of_a_lake_in_s3_are_in_the_home_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path))
    directory = lake_directory("s3://bucket/lake/")
    assert directory == lake_directory("s3://bucket/lake") != lake_directory("s3://bucket/other")
    assert directory.is_relative_to(tmp_path / "lakes")
    assert directory == Lake("s3://bucket/lake").path
    assert lake_directory("/data/lake") == Path("/data/lake")
