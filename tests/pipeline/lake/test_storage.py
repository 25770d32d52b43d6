"""Where a lake may be, and that a directory and S3 keep the same promises."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from posthouse.model.clock import SystemClock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import write_groups, write_rows
from posthouse.pipeline.lake.delta import Commit, Delta, check_files, vacuum
from posthouse.pipeline.lake.storage import LocalStorage, S3Storage, Storage, open_storage

SCHEMA = pa.schema([("epoch", pa.string()), ("seq", pa.int64()), ("day", pa.string())])


@pytest.mark.parametrize(
    "location",
    [
        *("gs://bucket/lake", "abfss://c@a.dfs.core.windows.net/lake", "hdfs://host/lake", "s3a://b/l", "https://x/l"),
        *("gs:/bucket/lake", "s3a:/b/l"),  # as pathlib writes it
        *("s3:bucket/lake", "gs:bucket/lake", "file://lake", "file://localhost/lake", "file:lake", "fil:///lake"),
    ],
)
def test_other_storage_is_refused_and_never_made_into_a_directory(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PosthouseError) as refused:
        Lake(location)
    assert refused.value.code == "lake_unsupported"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("location", ["s3://", "s3:///lake", "s3:/bucket/lake", "s3://bucket/lake?versionId=1"])
def test_an_address_that_names_no_bucket_is_refused(location: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        Lake(location)
    assert refused.value.code == "lake_unsupported"


def test_addresses_of_a_directory_and_of_s3_are_read(tmp_path: Path) -> None:
    expected = LocalStorage(tmp_path / "lake")
    assert {open_storage(each + f"{tmp_path}/lake") for each in ("", "file://", "file:")} == {expected}
    assert open_storage("S3://bucket/a/lake/") == open_storage("s3://bucket/a/lake") == S3Storage("bucket", "a/lake")
    assert open_storage("s3://bucket/a/lake").child("t").uri == "s3://bucket/a/lake/t"


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "relay.db").touch()
    with pytest.raises(PosthouseError, match="it is a file, not a directory") as refused:
        Lake(tmp_path / "relay.db")
    assert refused.value.code == "lake_unsupported"


def test_s3_that_does_not_answer_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(PosthouseError) as refused:
        Lake("s3://bucket/lake").names()
    assert refused.value.code == "lake_unreachable"


def test_a_bucket_that_does_not_exist_is_told_as_such(bucket: str) -> None:
    other = open_storage(f"{bucket}-other/t")
    for write_to in (
        lambda: Delta(other).commit(Commit(), SCHEMA),
        lambda: write_groups(other, SCHEMA, [SCHEMA.empty_table()]),
        lambda: write(other, 1, 2),
    ):
        with pytest.raises(PosthouseError) as refused:
            write_to()
        assert refused.value.code == "lake_unreachable"


@pytest.fixture(params=["directory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "directory":
        return open_storage(tmp_path / "lake" / "t")
    return open_storage(f"{request.getfixturevalue('bucket')}/lake/t")


def write(storage: Storage, first: int, last: int) -> Commit:
    seqs = list(range(first, last + 1))
    rows = pa.table({"epoch": ["e"] * len(seqs), "seq": seqs, "day": ["2026-01-01"] * len(seqs)})
    return Commit(write_rows(storage, rows), (), {"app": last}, {"app": None if first == 1 else first - 1})


def test_commits_are_read_back_by_another_process(storage: Storage) -> None:
    table = Delta(storage)
    assert (table.exists, table.version(), table.app_version("app"), table.files()) == (False, -1, None, [])
    table.commit(write(storage, 1, 5), SCHEMA)
    table.commit(write(storage, 6, 9), SCHEMA)
    found = Delta(storage)
    assert (found.exists, found.version(), found.app_version("app")) == (True, 1, 9)
    assert sorted((file.rows, file.min_values["seq"], file.days) for file in found.files()) == [
        (4, 6, ("2026-01-01", "2026-01-01")),
        (5, 1, ("2026-01-01", "2026-01-01")),
    ]
    assert Lake(storage.uri.removesuffix("/t")).names() == ["t"]


def test_a_file_that_is_missing_is_never_committed(storage: Storage) -> None:
    table = Delta(storage)
    table.commit(write(storage, 1, 5), SCHEMA)
    commit = write(storage, 6, 9)
    storage.delete_file(commit.add[0].path)
    with pytest.raises(PosthouseError) as refused:
        table.commit(commit, SCHEMA)
    assert refused.value.code == "lake_files_missing"
    assert (Delta(storage).version(), Delta(storage).app_version("app")) == (0, 5)


def test_a_lost_file_is_damage(storage: Storage) -> None:
    table = Delta(storage)
    table.commit(write(storage, 1, 5), SCHEMA)
    storage.delete_file(table.files()[0].path)
    with pytest.raises(PosthouseError, match="is missing"):
        check_files(table, table.files())


def test_of_many_writers_one_commits_and_the_others_are_told_that_the_lake_is_busy(storage: Storage) -> None:
    Delta(storage).commit(write(storage, 1, 5), SCHEMA)
    results: list[str] = []
    ready = threading.Barrier(4)

    def run() -> None:
        table, commit = Delta(storage), write(storage, 6, 9)
        ready.wait(30)
        try:
            table.commit(commit, SCHEMA)
            results.append("committed")
        except PosthouseError as failure:
            results.append(failure.code)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == ["committed", "lake_busy", "lake_busy", "lake_busy"]
    assert sum(file.rows for file in Delta(storage).files()) == 9


def test_files_that_no_commit_names_are_removed_after_a_while(storage: Storage) -> None:
    table = Delta(storage)
    table.commit(write(storage, 1, 5), SCHEMA)
    write(storage, 6, 9)  # a run that was killed before its commit
    assert vacuum(table, SystemClock()) == 0
    assert vacuum(table, SystemClock(), grace_s=-60) == 1
    check_files(table, table.files())


def test_a_table_can_be_deleted_and_created_again(storage: Storage) -> None:
    table = Delta(storage)
    table.commit(write(storage, 1, 5), SCHEMA)
    storage.delete_all()
    table.forget()
    assert not table.exists
    table.commit(write(storage, 1, 5), SCHEMA)
    assert table.version() == 0
