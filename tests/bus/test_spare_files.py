"""Files of handled messages are overwritten with the next ones: what readers may see of that, and when it is not so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from posthouse import Bus
from posthouse.bus.maildir import FOLDERS, SPARE_MAX_BYTES, SpareFiles
from posthouse.bus.maildir import Mailbox as OpenMailbox
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually


async def handle_one(house: House, bus: Bus, got: Recorder, payload: object) -> None:
    """Publish, and wait until the message has ended and its file is out of the way."""
    count = len(got.payloads) + 1
    await bus.publish("a.b", payload, from_="c")
    await got.wait(count)
    await eventually(lambda: house.mailbox("a.b").depth == 0)


async def serving(bus: Bus) -> Recorder:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    return got


def spares_of(house: House) -> list[Path]:
    return sorted((house.mailbox("a.b").path / "tmp").iterdir())


async def stored_inode(house: House, bus: Bus, payload: object) -> int:
    """Publish while a handler holds the message, and return the inode of its file."""
    await bus.publish("a.b", payload, from_="c")
    folder = house.mailbox("a.b").path
    (found,) = await eventually(lambda: [*(folder / "cur").iterdir()])
    return found.stat().st_ino


async def test_next_message_is_written_over_the_file_of_the_last(house: House, bus: Bus) -> None:
    got = await serving(bus)
    await handle_one(house, bus, got, "a long payload " * 50)
    (spare,) = spares_of(house)
    inode = spare.stat().st_ino
    got.release.clear()
    assert await stored_inode(house, bus, "short") == inode
    (envelope,) = house.mailbox("a.b").read("cur")  # nothing of the longer one is left behind it
    assert envelope["payload"] == "short"
    assert spares_of(house) == []
    got.release.set()


async def test_file_that_is_written_over_stays_private_to_the_user(house: House, bus: Bus) -> None:
    before = os.umask(0o022)
    try:
        got = await serving(bus)
        await handle_one(house, bus, got, 1)
        await handle_one(house, bus, got, 2)
    finally:
        os.umask(before)
    (spare,) = spares_of(house)
    assert stat.S_IMODE(spare.stat().st_mode) == 0o600


async def test_hard_link_to_a_handled_message_keeps_its_content(house: House, bus: Bus, tmp_path: Path) -> None:
    got = await serving(bus)
    got.release.clear()
    inode = await stored_inode(house, bus, "kept by a backup")
    copy = tmp_path / "copy"
    (name,) = house.mailbox("a.b").cur
    copy.hardlink_to(house.mailbox("a.b").path / "cur" / name)
    content = copy.read_bytes()
    got.release.set()
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    got.release.clear()
    assert await stored_inode(house, bus, "next") != inode
    assert copy.read_bytes() == content
    got.release.set()


async def test_spare_that_others_may_read_is_not_used(house: House, bus: Bus) -> None:
    got = await serving(bus)
    await handle_one(house, bus, got, 1)
    (spare,) = spares_of(house)
    spare.chmod(0o644)
    await handle_one(house, bus, got, 2)
    (spare,) = spares_of(house)
    assert stat.S_IMODE(spare.stat().st_mode) == 0o600


@pytest.mark.parametrize("trick", ["link", "directory", "pipe", "nothing"])
async def test_what_was_put_in_the_place_of_a_spare_is_left_alone(
    house: House, bus: Bus, tmp_path: Path, trick: str
) -> None:
    got = await serving(bus)
    await handle_one(house, bus, got, 1)
    (spare,) = spares_of(house)
    precious = tmp_path / "precious"
    precious.write_text("not yours")
    precious.chmod(0o600)
    spare.unlink()
    if trick == "link":
        spare.symlink_to(precious)
    elif trick == "directory":
        spare.mkdir()
    elif trick == "pipe":
        os.mkfifo(spare, 0o600)
    await handle_one(house, bus, got, 2)
    assert got.payloads == [1, 2]
    assert precious.read_text() == "not yours"


async def test_reader_never_takes_the_next_message_for_the_one_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written over between the reader's open and its read: it must find its message gone."""
    mailbox = made_mailbox(tmp_path)
    mailbox.write("one", b"the first")
    mailbox.move("tmp/one", "new/one")
    spares = SpareFiles("me", lambda _hash: mailbox, 1)
    real = os.read

    def interrupted(fd: int, count: int) -> bytes:
        monkeypatch.setattr(os, "read", real)
        mailbox.move("new/one", "cur/one")
        assert spares.keep("h", mailbox, "cur/one")
        assert spares.write("h", mailbox, b"the other", "new/two")
        return real(fd, count)

    monkeypatch.setattr(os, "read", interrupted)
    with pytest.raises(FileNotFoundError):
        mailbox.read("new/one")
    assert mailbox.read("new/two") == b"the other"
    mailbox.close()


def made_mailbox(folder: Path) -> OpenMailbox:
    for box in FOLDERS:
        (folder / box).mkdir()
    return OpenMailbox(folder)


def test_spares_are_bounded_and_what_lies_idle_goes(tmp_path: Path) -> None:
    mailbox = made_mailbox(tmp_path)
    spares = SpareFiles("me", lambda _hash: mailbox, 2)
    for name in ("one", "two", "three"):
        mailbox.write(name, b"x")
        mailbox.move(f"tmp/{name}", f"cur/{name}")
    assert [spares.keep("h", mailbox, f"cur/{name}") for name in ("one", "two", "three")] == [True, True, False]
    assert mailbox.names("cur") == ["three"]
    spares.remove_unneeded()  # both are younger than the last call
    assert len(mailbox.names("tmp")) == 2
    assert spares.write("h", mailbox, b"y", "new/four")
    assert spares.keep("h", mailbox, "new/four")
    spares.remove_unneeded()  # one of them was never needed
    assert len(mailbox.names("tmp")) == 1
    assert spares.keep("h", mailbox, "cur/three")
    spares.close()
    assert mailbox.names("tmp") == []
    mailbox.close()


def test_spare_that_cannot_reach_its_place_is_removed(tmp_path: Path) -> None:
    mailbox = made_mailbox(tmp_path)
    spares = SpareFiles("me", lambda _hash: mailbox, 2)
    mailbox.write("one", b"x")
    assert spares.keep("h", mailbox, "tmp/one")
    (tmp_path / "new").rmdir()
    (tmp_path / "new").write_text("no directory")
    with pytest.raises(NotADirectoryError):
        spares.write("h", mailbox, b"y", "new/two")
    assert mailbox.names("tmp") == []
    mailbox.close()


def test_large_content_takes_no_spare(tmp_path: Path) -> None:
    mailbox = made_mailbox(tmp_path)
    spares = SpareFiles("me", lambda _hash: mailbox, 2)
    mailbox.write("one", b"x")
    assert spares.keep("h", mailbox, "tmp/one")
    assert not spares.write("h", mailbox, b"y" * (SPARE_MAX_BYTES + 1), "new/two")
    assert spares.write("h", mailbox, b"y" * SPARE_MAX_BYTES, "new/two")
    mailbox.close()


async def test_file_of_a_large_message_is_removed(house: House, bus: Bus) -> None:
    got = await serving(bus)
    await handle_one(house, bus, got, "x" * SPARE_MAX_BYTES)
    await bus.sweep()
    assert spares_of(house) == []


async def test_power_durability_keeps_no_spares(house: House) -> None:
    bus = await house.bus(durability="power")
    got = await serving(bus)
    await handle_one(house, bus, got, 1)
    await bus.sweep()
    assert spares_of(house) == []


async def test_closing_removes_the_spares(house: House, bus: Bus) -> None:
    got = await serving(bus)
    await handle_one(house, bus, got, 1)
    assert len(spares_of(house)) == 1
    await bus.close()
    assert spares_of(house) == []


async def test_spares_of_the_dead_are_swept_and_those_of_the_living_left(house: House, bus: Bus) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    await agent.ask("subscribe", pattern="a.b")
    await agent.ask("publish", subject="a.b", payload=1, from_="c")
    await agent.wait_handled(1)
    await eventually(lambda: len(spares_of(house)) == 1)
    await bus.sweep()
    assert len(spares_of(house)) == 1
    await agent.kill()
    await bus.sweep()
    assert spares_of(house) == []


async def test_endpoint_made_anew_has_none_of_the_former_spares(house: House, bus: Bus) -> None:
    got = await serving(bus)
    await handle_one(house, bus, got, 1)
    await bus.unregister_endpoint("a.b")
    await bus.register_endpoint("a.b")
    await handle_one(house, bus, got, 2)
    assert len(spares_of(house)) == 1


async def test_mailbox_that_became_a_link_does_not_keep_the_bus_from_closing(
    house: House, bus: Bus, tmp_path: Path
) -> None:
    got = await serving(bus)
    await handle_one(house, bus, got, 1)
    folder = house.mailbox("a.b").path
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    bus.session.core.directory.forget(folder.name)
    await bus.close()
    with pytest.raises(PosthouseError):
        await bus.publish("a.b", 1, from_="c")


def test_content_is_whole_however_lengths_follow_each_other(tmp_path: Path) -> None:
    mailbox = made_mailbox(tmp_path)
    spares = SpareFiles("me", lambda _hash: mailbox, 1)
    mailbox.write("first", b"")
    mailbox.move("tmp/first", "new/m")
    for number, length in enumerate([3_000, 1, 0, 5_000, 20, 4_096, 4_097, SPARE_MAX_BYTES, 2]):
        content = bytes([number]) * length
        assert spares.keep("h", mailbox, "new/m")
        assert spares.write("h", mailbox, content, "new/m")
        assert mailbox.read("new/m") == content
    mailbox.close()
