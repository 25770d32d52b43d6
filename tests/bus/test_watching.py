"""A bus on a system without inotify: PortableWatcher takes its place, and messages of other processes still arrive."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from posthouse.bus import session, watching
from posthouse.bus.watching import PortableWatcher
from tests.bus.house import House
from tests.bus.listening import Recorder

BOUND_S = 30
AGAIN_S = 0.1


class Scanned:
    """A mailbox that only notes that it is to be scanned."""

    def __init__(self) -> None:
        self.is_told = asyncio.Event()

    def on_file(self, _name: str) -> bool:
        raise AssertionError("this watcher does not know what a file is")

    def rescan(self) -> None:
        self.is_told.set()


async def repeat_until(change: Callable[[], None], happened: asyncio.Event) -> None:
    """Make changes until one is reported: the first ones may come before the system watches."""
    async with asyncio.timeout(BOUND_S):
        while not happened.is_set():
            change()
            try:
                await asyncio.wait_for(happened.wait(), AGAIN_S)
            except TimeoutError:
                continue


@contextmanager
def watcher_of(folder: Path) -> Iterator[PortableWatcher]:
    (folder / "mailboxes" / "a" / "new").mkdir(parents=True)
    (folder / "tick").touch()
    loop = asyncio.get_running_loop()
    with closing(PortableWatcher(loop, contextvars.copy_context(), folder / "mailboxes", folder / "tick")) as watcher:
        yield watcher


@pytest.fixture
def only_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher scan for changes alone, not after an idle second."""
    monkeypatch.setattr(watching, "_IDLE_MS", 3_600_000)


async def test_files_and_ticks_of_others_are_reported_until_the_watcher_closes(
    tmp_path: Path, only_changes: None
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)  # as /tmp of macOS is one
    before, mailbox, ticked, written = threading.active_count(), Scanned(), asyncio.Event(), iter(range(10_000))

    def deliver() -> None:
        name = str(next(written))
        (real / name).touch()
        (real / name).rename(real / "mailboxes" / "a" / "new" / name)

    with watcher_of(link) as watcher:
        assert threading.active_count() == before, "nothing is watched yet"
        watcher.add_mailbox(link / "mailboxes" / "a" / "new", mailbox)
        watcher.watch_tick(link / "tick", ticked.set)
        await repeat_until(deliver, mailbox.is_told)
        await repeat_until(lambda: os.utime(real / "tick"), ticked)
    assert threading.active_count() == before


async def test_idle_watcher_scans_again_so_that_no_early_change_stays_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_IDLE_MS", 50)
    mailbox, removed, ticked = Scanned(), Scanned(), asyncio.Event()
    with watcher_of(tmp_path) as watcher:
        watcher.add_mailbox(tmp_path / "mailboxes" / "b" / "new", removed)
        watcher.remove_mailbox(removed)
        watcher.watch_tick(tmp_path / "tick", ticked.set)
        watcher.add_mailbox(tmp_path / "mailboxes" / "a" / "new", mailbox)
        async with asyncio.timeout(BOUND_S):
            await mailbox.is_told.wait()
            await ticked.wait()
    assert not removed.is_told.is_set()


async def test_directories_that_cannot_be_watched_leave_the_bus_to_its_scans(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    watcher = PortableWatcher(loop, contextvars.copy_context(), tmp_path / "none", tmp_path / "tick")
    watcher.add_mailbox(tmp_path / "none", Scanned())
    watcher.close()


async def test_bus_without_inotify_gets_messages_and_records_of_another_process_in_order(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HAS_INOTIFY", False)
    bus, got, tapped = await house.bus(), Recorder(), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await bus.tap(">", tapped)
    assert "posthouse-bus-watcher" in {thread.name for thread in threading.enumerate()}
    other = await house.agent()
    for number in range(10):
        await other.ask("publish", subject="a.b", payload=number, from_="c")
    assert await got.wait(10) == list(range(10))
    assert await tapped.wait(10) == list(range(10))
    assert (await bus.publish("a.b", 10, from_="c")).delivered_to == 1
    assert await got.wait(11) == list(range(11))
