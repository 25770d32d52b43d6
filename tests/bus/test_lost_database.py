"""Files are the truth: bus.db is deleted or damaged, or a process is killed between any two steps; no mail is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus, PosthouseError
from posthouse.bus.ledger import Ledger
from posthouse.journal.append import JournalTransaction
from posthouse.model.clock import system_clock
from tests.bus.counters import counted_letters, depth_counter, letters_on_disk
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder
from tests.bus.mailboxes import Mailbox
from tests.bus.test_journal import of_type
from tests.bus.waiting import DEADLINE_S

Program = Callable[[Bus], Awaitable[None]]


def lose_database(root: Path) -> None:
    for path in root.glob("bus.db*"):
        path.unlink()


async def prepare(house: House) -> list[str]:
    """Leave a mailbox with two waiting messages and one that was being handled, and a dead letter."""
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b", owner="me")
    ids = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(3)]
    await bus.close()
    box = house.mailbox("a.b").path
    (box / "new" / ids[0]).rename(box / "cur" / ids[0])
    return ids


async def test_bus_without_its_database_restores_endpoints_and_messages_from_the_files(house: House) -> None:
    ids = await prepare(house)
    lose_database(house.root)
    bus = await house.bus(reliability=reliability())
    (endpoint,) = await bus.list_endpoints()
    assert (endpoint.subject, endpoint.owner) == ("a.b", "me")
    assert house.mailbox("a.b").new == ids
    assert depth_counter(house.root, "a.b") == 3
    assert [record.ref for record in of_type(house.root, "bus.redelivered")] == [ids[0]]
    got = Recorder()
    await bus.register_endpoint("a.b", owner="me")
    await bus.subscribe("a.b", got)
    assert await got.wait(3) == [0, 1, 2]


async def test_index_of_a_restored_bus_agrees_with_its_files(house: House) -> None:
    await prepare(house)
    lose_database(house.root)
    bus = await house.bus(reliability=reliability())
    assert (await bus.metrics()).by_status == {"new": 3}
    await bus.rebuild_index()
    assert (await bus.metrics()).by_status == {"new": 3}


async def test_restore_that_was_interrupted_is_completed_by_the_next_process(house: House) -> None:
    ids = await prepare(house)
    lose_database(house.root)

    async def restore(_bus: Bus) -> None:
        return

    for step in range(1, 6):
        await asyncio.to_thread(kill_at, house.root, step, restore)
    bus = await house.bus(reliability=reliability())
    assert [envelope.id for envelope in await bus.read_inbox("a.b")] == ids


# a process that is killed between two steps


def kill_at(root: Path, step: int, program: Program) -> bool:
    """Run a program in a forked process and kill it at one step; return False if it ended before."""
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_run_killed(root, step, program))
        except BaseException:  # noqa: BLE001 - the parent only sees the exit code
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == signal.SIGKILL or os.WEXITSTATUS(status) == 0
    return status == signal.SIGKILL


async def _run_killed(root: Path, step: int, program: Program) -> None:
    left = step

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    bus = Bus(root)
    if program.__name__ != "restore":
        await bus.open()
    for name in ("rename", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    Ledger._write = counted(Ledger._write)  # type: ignore[method-assign]
    JournalTransaction.before_commit = counted(JournalTransaction.before_commit)  # type: ignore[method-assign]
    await bus.open()
    await program(bus)


def everywhere(root: Path) -> dict[str, list[str]]:
    """Return the folders in which each message lies."""
    found: dict[str, list[str]] = {}
    for folder in (Mailbox(root, "a.b").path, root / "unrouted"):
        for name in ("new", "cur", "failed"):
            for path in (folder / name).glob("*"):
                found.setdefault(path.name, []).append(f"{folder.name}/{name}")
    return found


def killed_at_every_step(root: Path, program: Program) -> list[int]:
    """Yield the steps at which the program was killed, each on a fresh copy of the bus in `root`."""
    steps: list[int] = []
    for step in range(1, 100):
        copy = root.with_name(f"step{step}")
        shutil.copytree(root, copy)
        if not kill_at(copy, step, program):
            return steps
        steps.append(step)
    raise AssertionError("the program never ended")


async def check_after_kill(root: Path, ids: list[str]) -> None:
    """Every message is in one place after recovery, and files, counters and both kinds of index agree."""
    async with Bus(root) as bus:
        await bus.sweep()
        found = everywhere(root)
        assert sorted(found) == ids
        assert all(len(places) == 1 for places in found.values()), found
        folders = {"new": "new", "cur": "cur", "failed": "dlq"}
        counts = Counter(folders[place.partition("/")[2]] for (place,) in found.values())
        assert sum((await bus.depths()).values()) == counts["new"] + counts["cur"]
        for mailbox in {place.partition("/")[0] for (place,) in found.values()}:
            assert counted_letters(root, mailbox) == letters_on_disk(root, mailbox)
        counts = +counts
        assert (await bus.metrics()).by_status == counts
        await bus.rebuild_index()
        assert (await bus.metrics()).by_status == counts


async def unregister(bus: Bus) -> None:
    await bus.unregister_endpoint("a.b", force=True)


async def test_kill_at_any_step_of_unregister_leaves_every_message(house: House) -> None:
    house.clock = system_clock()  # type: ignore[assignment]
    ids = await prepare(house)
    steps = await asyncio.to_thread(killed_at_every_step, house.root, unregister)
    assert len(steps) > 8
    for step in steps:
        root = house.root.with_name(f"step{step}")
        assert sorted(everywhere(root)) == ids, step
        await check_after_kill(root, ids)


async def fail_all(bus: Bus) -> None:
    await bus.register_endpoint("a.b", owner="me")
    failing = Recorder(fails=True)
    await bus.subscribe("a.b", failing)
    await failing.wait(3)
    await bus.sweep()


async def test_kill_at_any_step_of_a_dead_letter_leaves_the_message_or_the_letter(house: House) -> None:
    house.clock = system_clock()  # type: ignore[assignment]
    ids = await prepare(house)
    steps = await asyncio.to_thread(killed_at_every_step, house.root, fail_all)
    assert len(steps) > 8
    for step in steps:
        root = house.root.with_name(f"step{step}")
        assert sorted(everywhere(root)) == ids, step
        await check_after_kill(root, ids)


async def publish_and_handle(bus: Bus) -> None:
    await bus.register_endpoint("a.b", owner="me")
    got = Recorder()
    await bus.subscribe("a.b", got)
    for number in range(3):
        result = await bus.publish("a.b", number, from_="c")
        with (bus.path / "answered").open("a") as answered:
            answered.write(f"{result.message_id}\n")
    await got.wait(3)
    await bus.sweep()


async def test_kill_at_any_step_after_publish_returned_leaves_one_record_and_the_message_or_its_end(
    house: House,
) -> None:
    house.clock = system_clock()  # type: ignore[assignment]
    async with Bus(house.root) as bus:
        await bus.register_endpoint("a.b", owner="me")
    steps = await asyncio.to_thread(killed_at_every_step, house.root, publish_and_handle)
    assert len(steps) > 8
    for step in steps:
        root = house.root.with_name(f"step{step}")
        async with Bus(root) as bus:
            await bus.sweep()
            records = await bus.read_journal(0)
            waiting = [envelope.id for envelope in await bus.read_inbox("a.b")]
            published = [str(record.ref) for record in records if record.type == "bus.published"]
            ended = [str(record.ref) for record in records if record.type == "bus.handled"]
            answered = (root / "answered").read_text().split() if (root / "answered").exists() else []
            assert sorted([*ended, *waiting]) == sorted(published), step
            assert len(set(published)) == len(published), step
            assert set(answered) <= set(published), step
            assert await bus.depths() == {"a.b": len(waiting)}, step


async def test_bus_with_a_damaged_page_names_the_command_that_restores_it(house: House) -> None:
    await prepare(house)
    database = house.root / "bus.db"
    sound = database.read_bytes()
    refusals = []
    for page in range(4096, len(sound), 4096):
        database.write_bytes(sound[:page] + b"\xff" * 4096 + sound[page + 4096 :])
        try:
            async with Bus(house.root):
                continue  # opening did not read the page
        except PosthouseError as refused:
            refusals.append(refused)
    assert refusals
    assert all(f"posthouse bus recover --dir {house.root}" in refused.hint for refused in refusals), refusals


async def test_message_whose_dead_letter_is_unreadable_is_delivered_again(house: House) -> None:
    """A loss of power can leave an empty file in failed/ beside the message in cur/."""
    ids = await prepare(house)
    (house.mailbox("a.b").path / "failed" / ids[0]).write_bytes(b"")
    bus = await house.bus(reliability=reliability())
    got = Recorder()
    await bus.register_endpoint("a.b", owner="me")
    await bus.subscribe("a.b", got)
    assert await got.wait(3) == [0, 1, 2]


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 400], ids=["empty", "overwritten"])
async def test_damaged_database_is_set_aside_by_recover_and_nothing_is_deleted(house: House, damage: bytes) -> None:
    ids = await prepare(house)
    for path in house.root.glob("bus.db-*"):
        path.unlink()
    (house.root / "bus.db").write_bytes(damage)
    if damage:
        with pytest.raises(PosthouseError) as refused:
            await house.bus()
        assert f"posthouse bus recover --dir {house.root}" in refused.value.hint
    program = "from posthouse.cli.main import main; main()"
    command = [sys.executable, "-c", program, "bus", "recover", "--dir", str(house.root), "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S * 2)
    assert process.returncode == 0
    assert (json.loads(out)["endpoints"], json.loads(out)["messages"]) == (1, 3)
    kept = [path.read_bytes() for path in house.root.glob("bus.db.damaged-*")]
    assert kept == ([damage] if damage else [])
    bus = await house.bus(reliability=reliability())
    assert [envelope.id for envelope in await bus.read_inbox("a.b")] == ids
