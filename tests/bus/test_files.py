"""The data directory: file modes, files of other programs, and damage that never stops a mailbox."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus
from posthouse.model.errors import PosthouseError
from tests.bus.counters import depth_counter
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually

SOME_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def tight_umask() -> Iterator[None]:
    before = os.umask(0o777)
    yield
    os.umask(before)


async def work(house: House) -> None:
    """Leave files of every kind behind."""
    bus = await house.bus()
    for subject in ("a.new", "a.held", "a.fail"):
        await bus.register_endpoint(subject)
    held, failing = Recorder(holds=True), Recorder(fails=True)
    await bus.subscribe("a.held", held)
    await bus.subscribe("a.fail", failing)
    await bus.publish("a.*", 1, from_="c")
    await bus.publish("no.where", 1, from_="c")
    from tests.bus.test_access import rule

    await bus.add_rule(rule("x", "y"))
    await held.wait(1)
    await eventually(lambda: house.mailbox("a.fail").failed)


def modes(root: Path) -> dict[str, int]:
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(root))] = stat.S_IMODE(path.lstat().st_mode)
    return found


def check_private(root: Path) -> None:
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    found = modes(root)
    assert len(found) > 20
    wrong = {name: oct(mode) for name, mode in found.items() if mode != (0o700 if (root / name).is_dir() else 0o600)}
    assert wrong == {}


async def test_everything_is_private_under_umask_022(house: House, loose_umask: None) -> None:
    await work(house)
    check_private(house.root)


async def test_everything_is_reachable_for_its_owner_under_umask_777(house: House, tight_umask: None) -> None:
    await work(house)
    check_private(house.root)


CORRUPT: list[tuple[str, bytes]] = [
    (SOME_ID, b""),
    (SOME_ID, b"{"),
    (SOME_ID, b"\xff\xfe\x00"),
    (SOME_ID, b"null"),
    (SOME_ID, b"[]"),
    (SOME_ID, b'{"id": "x"}'),
    (SOME_ID, b"{" + b'"a":' * 2_000 + b"1"),
    ("not-an-id", b"{}"),
    (".hidden", b"{}"),
    ("name with spaces", b"{}"),
    ("new\nline", b"{}"),
    ("-rf", b"{}"),
    ("ü" * 60, b"{}"),
    ("x" * 250, b"{}"),
]


@pytest.mark.parametrize(("name", "content"), CORRUPT, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("box", ["new", "cur"])
async def test_corrupt_and_stray_files_go_to_failed_and_never_stop_a_mailbox(
    house: House, bus: Bus, name: str, content: bytes, box: str
) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    mailbox = house.mailbox("a.b")
    (mailbox.path / box / name).write_bytes(content)
    await bus.publish("a.b", "good", from_="c")
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["good"]
    (letter,) = await eventually(lambda: mailbox.failed)
    assert letter["reason"]
    assert letter.get("envelope") is None
    await eventually(lambda: mailbox.depth == 0)


async def test_file_name_that_is_no_utf8_stops_nothing(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    (house.mailbox("a.b").path / "new" / os.fsdecode(b"\xff\xfe\x80")).write_bytes(b"{}")
    await bus.publish("a.b", "good", from_="c")
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["good"]
    await eventually(lambda: house.mailbox("a.b").new == [])


async def test_directories_symlinks_and_fifos_in_new_stop_nothing(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    new = house.mailbox("a.b").path / "new"
    precious = house.root.parent / "precious"
    precious.write_text("do not touch")
    (new / "folder").mkdir()
    (new / SOME_ID).symlink_to(precious)
    (new / "dangling").symlink_to("/nowhere")
    os.mkfifo(new / "fifo")
    await bus.publish("a.b", "good", from_="c")
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["good"]
    await bus.publish("a.b", "later", from_="c")
    assert await got.wait(2) == ["good", "later"]
    assert precious.read_text() == "do not touch"
    assert precious.exists()


async def test_envelope_for_another_endpoint_or_id_than_its_place_is_a_dead_letter(house: House, bus: Bus) -> None:
    got = Recorder()
    for subject in ("a.b", "x.y"):
        await bus.register_endpoint(subject)
    await bus.publish("x.y", "stolen", from_="c")
    (stored,) = house.mailbox("x.y").read("new")
    new = house.mailbox("a.b").path / "new"
    (new / SOME_ID).write_text(json.dumps(stored))
    await bus.subscribe("a.b", got)
    (letter,) = await eventually(lambda: house.mailbox("a.b").failed)
    assert letter["reason"]
    assert got.payloads == []


@pytest.mark.parametrize(
    "change",
    [
        {"subject": "a b"},
        {"from": ""},
        {"createdAt": "yesterday"},
        {"budget": {"hopCount": -1}},
        {"budget": None},
        {"replyTo": "a.*"},
        {"id": "lower"},
    ],
    ids=str,
)
async def test_envelope_with_a_bad_field_is_a_dead_letter(house: House, bus: Bus, change: dict[str, Any]) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "good", from_="c")
    mailbox = house.mailbox("a.b")
    (stored,) = mailbox.read("new")
    (mailbox.path / "new" / SOME_ID).write_text(json.dumps(stored | {"id": SOME_ID} | change))
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["good"]
    assert len(await eventually(lambda: mailbox.failed)) == 1


async def test_stale_temporary_files_are_swept(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    tmp = house.mailbox("a.b").path / "tmp"
    (tmp / SOME_ID).write_text("half a mess")
    wall_s = house.clock.wall_ns() / 1e9
    os.utime(tmp / SOME_ID, (wall_s - 7_200, wall_s - 7_200))
    await bus.sweep()
    assert list(tmp.iterdir()) == []


async def test_message_file_that_vanishes_does_not_stop_the_mailbox(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "vanishing", from_="c")
    await bus.publish("a.b", "staying", from_="c")
    mailbox = house.mailbox("a.b")
    (mailbox.path / "new" / mailbox.new[0]).unlink()
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["staying"]
    await eventually(lambda: mailbox.depth == 0)


async def test_mailbox_that_vanishes_makes_publish_fail_or_say_so(house: House, bus: Bus) -> None:
    import shutil

    await bus.register_endpoint("a.b")
    await bus.register_endpoint("a.c")
    shutil.rmtree(house.mailbox("a.b").path)
    result = await bus.publish("a.c", 1, from_="c")
    assert result.delivered_to == 1
    with pytest.raises(Exception):  # noqa: B017 - which code it is belongs to the bus; silence is the defect
        await bus.publish("a.b", 1, from_="c")


@pytest.mark.parametrize("box", ["new", "cur", "tmp", "failed"])
async def test_directory_that_cannot_be_read_stops_only_its_own_mailbox(house: House, bus: Bus, box: str) -> None:
    """A file in the place of a directory cannot be listed or written into, for root neither."""
    got = Recorder()
    for subject in ("bad.one", "good.one"):
        await bus.register_endpoint(subject)
    broken = house.mailbox("bad.one").path / box
    broken.rmdir()
    broken.write_text("not a directory")
    await bus.subscribe(">", got)
    await bus.publish("good.one", "before", from_="c")
    with contextlib.suppress(PosthouseError):
        await bus.publish("bad.one", "lost or recorded", from_="c")
    await bus.publish("good.one", "after", from_="c")
    payloads = await eventually(lambda: got.payloads, lambda seen: "after" in seen)
    assert [payload for payload in payloads if payload != "lost or recorded"] == ["before", "after"]
    assert sorted(endpoint.subject for endpoint in await bus.list_endpoints()) == ["bad.one", "good.one"]


async def test_publish_to_a_mailbox_that_cannot_be_written_raises_and_leaves_no_depth(house: House, bus: Bus) -> None:
    await bus.register_endpoint("bad.one")
    tmp = house.mailbox("bad.one").path / "tmp"
    tmp.rmdir()
    tmp.write_text("not a directory")
    for _ in range(3):
        with pytest.raises(PosthouseError) as refused:
            await bus.publish("bad.one", 1, from_="c")
        assert refused.value.code == "mailbox_unwritable"
    assert depth_counter(house.root, "bad.one") == 0
    tmp.unlink()
    tmp.mkdir(mode=0o700)
    assert (await bus.publish("bad.one", "again", from_="c")).delivered_to == 1


async def test_write_errors_open_the_breaker_of_their_endpoint(house: House, bus: Bus) -> None:
    await bus.register_endpoint("bad.one")
    tmp = house.mailbox("bad.one").path / "tmp"
    tmp.rmdir()
    tmp.write_text("not a directory")
    for _ in range(5):
        with pytest.raises(PosthouseError):
            await bus.publish("bad.one", 1, from_="c")
    result = await bus.publish("bad.one", 1, from_="c")
    assert [str(entry.reason) for entry in result.rejected] == ["circuit_open"]


async def test_repaired_mailbox_is_served_again_by_itself(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("bad.one")
    cur = house.mailbox("bad.one").path / "cur"
    cur.rmdir()
    cur.write_text("not a directory")
    await bus.subscribe("bad.one", got)
    cur.unlink()
    cur.mkdir(mode=0o700)
    await bus.publish("bad.one", "patience", from_="c")
    assert await got.wait(1) == ["patience"]
