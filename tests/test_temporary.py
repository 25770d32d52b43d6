"""Temporary files of tests lie in memory only where there is room for them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests import temporary


@pytest.fixture(autouse=True)
def own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())


def test_temporary_files_of_a_process_and_its_children_move_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "_ROOM_BYTES", 1)
    environ: dict[str, str] = {}
    temporary.use_memory(tmp_path, environ)
    assert environ == {"TMPDIR": str(tmp_path)}
    monkeypatch.setenv("TMPDIR", environ["TMPDIR"])
    assert tempfile.gettempdir() == str(tmp_path)


@pytest.mark.parametrize("chosen", [{"TMPDIR": "/var/tmp"}, {"POSTHOUSE_FAULTS": "full"}])
def test_choice_of_the_caller_stays(chosen: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_ROOM_BYTES", 1)
    environ = dict(chosen)
    temporary.use_memory(tmp_path, environ)
    assert environ == chosen


def test_memory_without_room_is_not_used(small_disk: Path, tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    for memory in (small_disk, tmp_path / "missing"):
        temporary.use_memory(memory, environ)
    assert environ == {}
