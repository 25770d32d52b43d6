"""Full and failing disks under real processes and real file systems."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.model.codes.spec import Exit
from tests.faults.child import Child
from tests.faults.store_checker import findings
from tests.journal.facts import note, opened, refs


@pytest.mark.faults
async def test_a_full_file_system_is_told_loses_nothing_and_passes(small_disk: Path) -> None:
    path, ballast = small_disk / "s.db", small_disk / "ballast"
    ballast.write_bytes(b"x" * 600_000)
    answered: list[str] = []
    with opened(path, FakeClock()) as store:
        codes: set[str] = set()
        for wave in range(40):
            names = [f"{wave}-{n}" for n in range(16)]
            works = (store.writer.run(note(name, padding=6_000)) for name in names)
            answers = await asyncio.gather(*works, return_exceptions=True)
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, int):
                    answered.append(f"{name} {answer}")
                else:
                    codes.add(getattr(answer, "code", repr(answer)))
        assert codes == {"store_full"}
        assert store.writer.state == "full"
        assert len(refs(store)) == len(answered)
        ballast.unlink()
        answered.append(f"after {await store.writer.run(note('after'))}")
        assert store.writer.state == "open"
    assert findings(path, answered) == []


@pytest.mark.faults
def test_a_failed_sync_ends_the_process_and_answers_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Child("tests.faults.store_syncer", path, 5) as child:
        assert child.wait() == Exit.BROKEN, child.errors
        lines = child.lines
    assert [line.split()[0] for line in lines] == [f"good-{n}" for n in range(5)]
    assert findings(path, lines) == []


def test_a_store_whose_process_ended_on_a_failed_sync_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Child("tests.faults.store_syncer", path, 2) as child:
        child.wait()
    with opened(path, FakeClock()) as store:
        head = store.extent().head
        assert store.writer.run_blocking(note("again")) == head + 1
    assert verify_store(path) == []
