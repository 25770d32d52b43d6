from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse import Fence, FenceTable, Refused

TOKENS = st.lists(st.integers(1, 6), max_size=12)


def passes(fence: Fence, token: int) -> bool:
    try:
        fence.admit(token)
    except Refused as refusal:
        assert refusal.code == "fence_stale"
        return False
    return True


def oracle(tokens: list[int], strict: bool) -> list[bool]:
    """Say by the definition alone which tokens pass: none lower than one that passed, strictly none twice."""
    passed: list[int] = []
    verdicts = []
    for token in tokens:
        verdict = all(token > other if strict else token >= other for other in passed)
        verdicts.append(verdict)
        passed += [token] if verdict else []
    return verdicts


@settings(max_examples=25, deadline=None)
@given(tokens=TOKENS, strict=st.booleans())
def test_file_fence_decides_as_defined_and_remembers(tokens: list[int], strict: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # a new object each time: only the file remembers
        verdicts = [passes(Fence(Path(folder) / "fence", strict=strict), token) for token in tokens]
    assert verdicts == oracle(tokens, strict)


@settings(max_examples=25, deadline=None)
@given(tokens=TOKENS, strict=st.booleans())
def test_table_fence_decides_as_defined(tokens: list[int], strict: bool) -> None:
    db = apsw.Connection(":memory:")
    memory = FenceTable(db, "db/main")
    memory.create()
    assert [passes(Fence(memory, strict=strict), token) for token in tokens] == oracle(tokens, strict)


def test_table_fence_commits_and_rolls_back_with_what_it_guards(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "db"))
    db.execute("CREATE TABLE register (value INTEGER)")
    memory = FenceTable(db, "register")
    memory.create()
    fence = Fence(memory)
    with pytest.raises(ZeroDivisionError), db, fence.guard(7):
        db.execute("INSERT INTO register VALUES (1)")
        raise ZeroDivisionError
    assert fence.last_seen() is None
    with db, fence.guard(5):
        db.execute("INSERT INTO register VALUES (2)")
    with pytest.raises(Refused), db, fence.guard(4):
        db.execute("INSERT INTO register VALUES (3)")
    assert db.execute("SELECT value FROM register").fetchall() == [(2,)]


def test_tables_and_fences_in_one_database_do_not_mix(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "db"))
    first, second = FenceTable(db, "a"), FenceTable(db, "b")
    first.create()
    Fence(first).admit(9)
    assert Fence(second).last_seen() is None and passes(Fence(second), 1)


def test_name_of_a_table_cannot_carry_sql() -> None:
    with pytest.raises(Refused, match="not the name of a table"):
        FenceTable(apsw.Connection(":memory:"), "a", table="x; DROP TABLE y")


@pytest.mark.parametrize("content", [b"", b"posthouse-fence-v1 0\n", b"posthouse-fence-v1 5", b"5\n", b"x" * 100])
def test_damaged_file_refuses_instead_of_forgetting(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fence"
    path.write_bytes(content)
    with pytest.raises(Refused) as refusal:
        Fence(path).admit(10)
    assert refusal.value.code == "fence_damaged" and path.read_bytes() == content


def test_symbolic_link_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"posthouse-fence-v1 1\n")
    (tmp_path / "fence").symlink_to(tmp_path / "other")
    with pytest.raises(Refused):
        Fence(tmp_path / "fence").admit(10)


@pytest.mark.parametrize("token", [0, -1, True, 1.5, "7", 2**63])
def test_what_is_no_token_is_refused(tmp_path: Path, token: object) -> None:
    with pytest.raises(Refused) as refusal:
        Fence(tmp_path / "fence").admit(token)  # type: ignore[arg-type]
    assert refusal.value.code == "token_not_positive"


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Fence(tmp_path / "fence").admit(3)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"fence": 0o600, "fence.lock": 0o600}


def test_token_is_remembered_before_the_guarded_body_runs(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "fence")
    with pytest.raises(ZeroDivisionError), fence.guard(8):
        raise ZeroDivisionError
    assert not passes(Fence(tmp_path / "fence"), 7)


def run(folder: Path, kind: str, seed: int, tokens: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fence.writer", str(folder), kind, str(seed), str(tokens)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def written_by_many(folder: Path, kind: str) -> list[int]:
    writers = [run(folder, kind, seed, 150) for seed in range(4)]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    return [int(line) for line in (folder / "log").read_text().split()]


def test_no_writer_of_many_processes_falls_behind_the_fence(tmp_path: Path) -> None:
    written = written_by_many(tmp_path, "fenced")
    assert written == sorted(written) and len(written) > 1  # how many tokens pass is up to the scheduler


def test_control_without_the_fence_old_tokens_write_after_new_ones(tmp_path: Path) -> None:
    written = written_by_many(tmp_path, "unfenced")
    assert written != sorted(written)


@pytest.mark.parametrize("kill_after", [1, 7, 40])
def test_killed_writer_leaves_a_fence_that_knows_every_token_that_passed(tmp_path: Path, kill_after: int) -> None:
    writer = run(tmp_path, "fenced", 1, 5_000)
    assert writer.stdout is not None
    passed = [int(writer.stdout.readline()) for _ in range(kill_after)]
    writer.send_signal(signal.SIGKILL)
    passed += [int(line) for line in writer.communicate(timeout=60)[0].split("\n")[:-1]]
    fence = Fence(tmp_path / "fence")
    last_seen = fence.last_seen()
    assert last_seen is not None and last_seen >= passed[-1]
    assert last_seen == 1 or not passes(fence, last_seen - 1)
    assert passes(fence, last_seen + 1)
