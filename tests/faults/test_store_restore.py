"""kill -9 at every step of a restore: the old store, the new one, or a refusal; never a mixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.sqlite.backup import backup_store
from tests.faults.child import Child
from tests.journal.facts import note, opened, refs

OLD, NEW = ["0", "1", "2", "3", "4"], ["0", "1", "2"]


def look(path: Path) -> str:
    """Return which store is there."""
    try:
        with opened(path, FakeClock()) as store:
            found, epochs = refs(store), len(store.extent().ancestors)
    except PosthouseError as refused:
        return refused.code
    assert verify_store(path) == []
    assert (found, epochs) in ((OLD, 0), (NEW, 1))
    return "old" if found == OLD else "new"


@pytest.mark.campaign
def test_a_restore_killed_at_any_step_leaves_no_mixture_and_can_be_run_again(tmp_path: Path) -> None:
    seen = []
    for step in range(1, 100):
        folder = tmp_path / str(step)
        folder.mkdir()
        path, backup = folder / "s.db", folder / "backup"
        with opened(path, FakeClock()) as store:
            for n in range(3):
                store.writer.run_blocking(note(str(n)))
            backup_store(path, backup)
            for n in range(3, 5):
                store.writer.run_blocking(note(str(n)))
        with Child("tests.faults.store_restorer", backup, path, step) as child:
            is_done = child.wait() == 0
        seen.append(look(path))
        with Child("tests.faults.store_restorer", backup, path, 0) as again:
            assert again.wait() == 0, again.errors
        assert look(path) == "new"
        assert not [file.name for file in folder.iterdir() if file.name.startswith(".") or "restor" in file.name]
        if is_done:
            break
    assert set(seen) == {"old", "store_half_restored", "new"}
    assert seen == sorted(seen, key=["old", "store_half_restored", "new"].index)
