"""Private directories and files: modes, owners, links, and writing whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse import files
from posthouse.model.errors import PosthouseError
from tests.keys.refusal import refused


@pytest.fixture(params=[0o022, 0o000, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    assert tmp_path.is_dir()  # made before, so that its user may write into it
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("umask")
def test_directories_are_0700_with_their_new_parents(tmp_path: Path) -> None:
    made = files.private_dir(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert files.private_dir(made) == made


def test_an_empty_directory_is_narrowed_and_a_used_one_refused(tmp_path: Path) -> None:
    empty, used = tmp_path / "empty", tmp_path / "used"
    for directory in (empty, used):
        directory.mkdir()
        directory.chmod(0o755)
    (used / "file").touch()
    assert mode(files.private_dir(empty)) == 0o700
    with refused("file_not_private", "0755") as errors:
        files.private_dir(used)
    assert f"chmod 700 {used}" in errors[0].hint
    assert mode(used) == 0o755


def test_a_directory_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "home", Path("/proc/home"), Path("/proc/home/daemon")):
        with pytest.raises(PosthouseError) as refused:
            files.private_dir(path)
        assert refused.value.code == "store_unusable"
        assert refused.value.fields["path"] in (str(path), str(path.parent))


def test_existing_parents_keep_their_mode(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o755)
    files.private_dir(parent / "child")
    assert mode(parent) == 0o755


def test_a_link_or_a_file_is_no_private_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch(mode=0o600)
    for name, reason in (("link", "symbolic"), ("dangling", "symbolic"), ("file", "not a directory")):
        with refused("store_path_unsafe", reason):
            files.private_dir(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user: not tested")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 12345, -1)
    with refused("store_path_unsafe", "12345"):
        files.private_dir(foreign)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("sync", [True, False])
def test_a_written_file_has_its_content_and_exactly_its_mode(tmp_path: Path, sync: bool) -> None:
    files.write_atomic(tmp_path / "one", b"1", sync=sync)
    files.create_atomic(tmp_path / "two", b"2", sync=sync)
    files.write_atomic(tmp_path / "open", b"3", sync=sync, mode=0o644)
    assert [mode(tmp_path / name) for name in ("one", "two", "open")] == [0o600, 0o600, 0o644]
    assert (tmp_path / "one").read_bytes() + (tmp_path / "two").read_bytes() == b"12"
    assert names(tmp_path) == ["one", "open", "two"]


def test_write_replaces_and_create_does_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.create_atomic(path, b"first")
    with pytest.raises(FileExistsError):
        files.create_atomic(path, b"second")
    assert path.read_bytes() == b"first"
    files.write_atomic(path, b"third")
    assert path.read_bytes() == b"third"
    assert names(tmp_path) == ["file"]


def test_a_reader_with_the_old_file_open_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_atomic(path, b"old")
    with path.open("rb") as reader:
        files.write_atomic(path, b"new, and longer")
        assert reader.read() == b"old"


def test_a_failure_before_the_rename_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    files.write_atomic(path, b"old")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    for attempt in (files.write_atomic, files.create_atomic):
        with pytest.raises(PosthouseError, match="No space"):
            attempt(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_content_is_synced_before_its_name_and_the_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(fd: int) -> None:
        steps.append("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        fsync(fd)

    def note_rename(self: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    files.write_atomic(tmp_path / "file", b"data")
    assert steps == ["sync file", "rename", "sync directory"]


def test_links_are_neither_written_nor_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    files.write_atomic(target, b"kept")
    link.symlink_to(target)
    with refused("store_path_unsafe", "symbolic link"):
        files.write_atomic(link, b"planted")
    with pytest.raises(FileExistsError):
        files.create_atomic(link, b"planted")
    with refused("store_path_unsafe", "symbolic link"):
        files.read_private(link)
    with refused("store_path_unsafe", "symbolic link"):
        files.open_nofollow(link, os.O_RDONLY)
    assert target.read_bytes() == b"kept"


def test_a_pipe_or_directory_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(mode=0o700)
    for name in ("pipe", "directory"):
        with refused("store_path_unsafe", "not a regular file"):
            files.read_private(tmp_path / name)
    with refused("store_path_unsafe", "not a regular file"):
        files.open_nofollow(tmp_path / "pipe", os.O_WRONLY)


def test_a_private_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "file", b"12345")
    assert files.read_private(tmp_path / "file", max_bytes=5) == b"12345"
    with refused("store_path_unsafe", "larger than 4"):
        files.read_private(tmp_path / "file", max_bytes=4)


def test_a_missing_file_stays_the_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_private(tmp_path / "none")


def test_temporary_names_are_hidden_and_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    opener = files.open_nofollow

    def note(path: Path, flags: int, mode: int) -> int:
        used.add(path.name)
        return opener(path, flags, mode)

    monkeypatch.setattr(files, "open_nofollow", note)
    for _ in range(10):
        files.write_atomic(tmp_path / "file", b"")
    assert len(used) == 10
    assert all(name.startswith(".file.") and name.endswith(".tmp") for name in used)
