"""Key files: private whatever the umask, whole or absent, never overwritten."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.keys import NodeKey, keyfile
from tests.keys.refusal import refused

KEY = NodeKey(b"\x07" * 32)


@pytest.fixture(params=[0o022, 0o000, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    assert tmp_path.is_dir()  # made before, so that its user may write into it
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "keypair.json"


@pytest.mark.usefixtures("umask")
def test_file_and_directory_are_private_whatever_the_umask(path: Path) -> None:
    keyfile.create(path)
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


def test_a_stored_key_comes_back_and_leaves_no_other_file(path: Path) -> None:
    keyfile.create(path, KEY)
    assert keyfile.load(path).reveal_seed() == KEY.reveal_seed()
    assert names(path.parent) == ["keypair.json"]
    assert json.loads(path.read_text()) == {
        "format": "posthouse-key-v1",
        "node": KEY.node,
        "seed": KEY.reveal_seed().hex(),
    }


def test_a_key_is_never_overwritten(path: Path) -> None:
    keyfile.create(path, KEY)
    before = path.read_bytes()
    with refused("key_file_exists"):
        keyfile.create(path)
    assert path.read_bytes() == before
    assert names(path.parent) == ["keypair.json"]


def test_load_or_create_makes_a_key_once(path: Path) -> None:
    first = keyfile.load_or_create(path)
    assert keyfile.load_or_create(path).node == first.node == keyfile.load(path).node


def test_racing_creators_get_one_key(path: Path) -> None:
    barrier = threading.Barrier(6)
    nodes: list[str] = []

    def race() -> None:
        barrier.wait(10)
        nodes.append(keyfile.load_or_create(path).node)

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(nodes) == 6
    assert set(nodes) == {keyfile.load(path).node}
    assert names(path.parent) == ["keypair.json"]


def test_a_missing_key_file_is_told(path: Path) -> None:
    with refused("key_file_missing", str(path)):
        keyfile.load(path)


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o660, 0o644, 0o601, 0o666])
def test_a_key_that_others_can_reach_is_refused_with_the_command_that_helps(path: Path, loose: int) -> None:
    keyfile.create(path, KEY)
    path.chmod(loose)
    for attempt in (keyfile.load, keyfile.load_or_create):
        with refused("file_not_private", f"{loose:04o}") as errors:
            attempt(path)
        assert f"chmod 600 {path}" in errors[0].hint


def test_a_symbolic_link_is_refused_and_never_written_through(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.json"
    keyfile.create(path, KEY)
    path.rename(target)
    path.symlink_to(target)
    for attempt in (keyfile.load, keyfile.load_or_create):
        with refused("store_path_unsafe", "symbolic link"):
            attempt(path)
    with refused("key_file_exists"):
        keyfile.create(path)
    assert keyfile.load(target).node == KEY.node


def test_a_dangling_link_does_not_make_a_key_elsewhere(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.symlink_to(tmp_path / "planted")
    with refused("store_path_unsafe", "symbolic link"):
        keyfile.load_or_create(path)
    with refused("key_file_exists"):
        keyfile.create(path)
    assert not (tmp_path / "planted").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user: not tested")
def test_a_key_of_another_user_is_refused(path: Path) -> None:
    keyfile.create(path, KEY)
    os.chown(path, 12345, -1)
    with refused("store_path_unsafe", "12345"):
        keyfile.load(path)


GOOD = {"format": "posthouse-key-v1", "node": KEY.node, "seed": KEY.reveal_seed().hex()}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"{}",
        json.dumps(GOOD | {"format": "posthouse-key-v2"}).encode(),
        json.dumps(GOOD | {"seed": GOOD["seed"][:-2]}).encode(),
        json.dumps(GOOD | {"seed": GOOD["seed"] + "00"}).encode(),
        json.dumps(GOOD | {"seed": "zz" * 32}).encode(),
        json.dumps(GOOD | {"seed": 7}).encode(),
        json.dumps(GOOD | {"node": NodeKey(bytes(32)).node}).encode(),
        json.dumps(GOOD | {"more": 1}).encode(),
        json.dumps(GOOD).encode()[:-1],
    ],
)
def test_a_damaged_key_file_is_refused_without_showing_its_secret(path: Path, content: bytes) -> None:
    keyfile.create(path)
    path.write_bytes(content)
    with refused("key_malformed") as errors:
        keyfile.load(path)
    shown = str(errors[0].problem()) + repr(errors[0].__cause__)
    assert KEY.reveal_seed().hex()[:32] not in shown


def test_a_key_file_in_a_shared_directory_is_not_created(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "note").write_text("of somebody else")
    with refused("file_not_private", "0777"):
        keyfile.create(shared / "keypair.json")
    assert names(shared) == ["note"]
