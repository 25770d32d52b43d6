"""Several processes on one store at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.journal.restore import restore_store
from posthouse.journal.store import JOURNAL
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.sqlite.backup import backup_store
from tests.faults.child import Child
from tests.faults.store_checker import findings
from tests.journal.facts import all_records, note, opened, refs

WORKER = "tests.faults.store_worker"


@pytest.mark.parametrize("kinds", [("store", "store"), ("direct", "direct"), ("store", "direct")])
def test_processes_share_one_sequence_in_commit_order(tmp_path: Path, kinds: tuple[str, str]) -> None:
    path = tmp_path / "s.db"
    children = [Child(WORKER, path, f"p{n}", kind, "honest", 300) for n, kind in enumerate(kinds)]
    for child in children:
        with child:
            assert child.wait() == 0, child.errors
    answered = [line for child in children for line in child.lines]
    assert findings(path, answered) == []
    seqs = sorted(int(line.split()[1]) for line in answered)
    assert seqs == list(range(1, 601))
    with opened(path, FakeClock()) as store:
        times = [record.at_ns for record in all_records(store)]
    assert times == sorted(times)


def test_processes_that_make_a_store_at_the_same_moment_agree_on_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    children = [Child(WORKER, path, f"p{n}", kind, "honest", 1) for n, kind in enumerate(["store", "direct"] * 2)]
    for child in children:
        with child:
            assert child.wait() == 0, child.errors
    assert findings(path, [line for child in children for line in child.lines]) == []
    with opened(path, FakeClock()) as store:
        assert len(refs(store)) == 4


def test_restore_refuses_while_another_process_has_the_store_open(tmp_path: Path) -> None:
    path, backup = tmp_path / "s.db", tmp_path / "backup"
    with opened(path, FakeClock()) as store:
        store.writer.run_blocking(note("first"))
    with Child(WORKER, path, "p") as child:
        child.wait_lines(1)
        backup_store(path, backup)
        with pytest.raises(PosthouseError) as refused:
            restore_store(backup, path, (JOURNAL,), FakeClock())
        assert refused.value.code == "store_in_use"
        answered = child.kill()
    assert findings(path, answered) == []
    restore_store(backup, path, (JOURNAL,), FakeClock())  # the kernel has freed the lock of the dead
