"""kill -9 at random under load: what was answered is there, once, in order; and the checker would notice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from tests.faults.campaign import chance, rounds
from tests.faults.child import Child
from tests.faults.store_checker import findings
from tests.journal.facts import note, opened

WORKER = "tests.faults.store_worker"


def kill_one(path: Path, prefix: str, luck: random.Random, *args: str) -> list[str]:
    """Let a worker write until a random number of answers, then kill it in whatever it is doing."""
    with Child(WORKER, path, prefix, *args) as child:
        child.wait_lines(luck.randrange(1, 2_000))
        return child.kill()


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["store", "direct"])
def test_a_killed_store_keeps_every_answered_item_once_and_in_order(tmp_path: Path, kind: str) -> None:
    path, luck, answered = tmp_path / "s.db", chance(f"kill {kind}"), list[str]()
    for number in range(rounds(3, 50)):
        answered += kill_one(path, f"r{number}", luck, kind)
        assert findings(path, answered) == []
    assert len(answered) > 0


@pytest.mark.faults
def test_two_processes_on_one_store_survive_kills_with_one_sequence(tmp_path: Path) -> None:
    path, luck, answered = tmp_path / "s.db", chance("kill two"), list[str]()
    for number in range(rounds(2, 20)):
        with Child(WORKER, path, f"a{number}", "store") as one, Child(WORKER, path, f"b{number}", "direct") as two:
            one.wait_lines(luck.randrange(1, 500))
            two.wait_lines(luck.randrange(1, 500))
            answered += one.kill()
            two.wait_lines(len(two.lines) + 50)  # the other goes on
            answered += two.kill()
        assert findings(path, answered) == []


@pytest.mark.faults
def test_the_control_that_answers_before_the_commit_loses_items(tmp_path: Path) -> None:
    luck = chance("control")
    for number in range(20):
        path = tmp_path / f"{number}.db"
        answered = kill_one(path, "r", luck, "store", "hasty")
        if any("is lost" in found for found in findings(path, answered)):
            return
    pytest.fail("answers before the commit were never lost: the campaign does not bite")


def test_the_checker_finds_each_planted_violation(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with opened(path, FakeClock()) as store:
        for ref in ("a", "b", "twice", "twice"):
            store.writer.run_blocking(note(ref))
        store.writer.run_blocking(lambda tx: tx.db.execute("DELETE FROM journal WHERE seq = 2").fetchall())
    found = findings(path, ["a 1", "b 2", "a 9"])
    assert "twice is there 2 times" in found
    assert "b was answered and is lost" in found
    assert "a was answered as 9 and is 1" in found
    assert any("gap" in finding for finding in found)
