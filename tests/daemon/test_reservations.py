"""Reserved paths over the local API: who holds what, until when, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon.agents.reservations import GONE_S, overlaps
from posthouse.model.clock import FakeClock
from tests.client.house import House
from tests.daemon.hosts import Host, Said, eventually, host_at, make_host, restart, running

NOWHERE = "http://127.0.0.1:9"


class Local:
    """A daemon without a relay, with the agents ann and ben."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def ask(self, method: str, agent: str, **body: Any) -> Said:
        return await self.host.ask(method, "/v1/reservations", json=body, headers={"Posthouse-Agent": agent})

    async def reserve(self, agent: str, *paths: Path, **more: Any) -> Said:
        return await self.ask("POST", agent, paths=[str(path) for path in paths], **more)

    async def held(self) -> list[tuple[str, str]]:
        items = (await self.host.get("/v1/reservations"))["items"]
        return [(item["agent"], Path(item["path"]).name) for item in items]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def local(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Local]:
    host = make_host(tmp_path, NOWHERE, clock=clock)
    async with running(host):
        for name in ("ann", "ben"):
            await host.post("/v1/agents", name=name)
        yield Local(host)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "w" / "src" / "api").mkdir(parents=True)
    return tmp_path / "w"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("/w/a", "/w/a", True),
        ("/w", "/w/a/b", True),
        ("/w/a/b", "/w", True),
        ("/w/a", "/w/ab", False),
        ("/", "/w", True),
    ],
)
def test_a_path_covers_itself_and_everything_below(one: str, other: str, expected: bool) -> None:
    assert overlaps(one, other) is expected


async def test_second_agent_is_refused_with_holder_note_and_time_left(local: Local, tree: Path) -> None:
    granted = await local.reserve("ann", tree / "src", for_s=60, note="refactor")
    assert granted.status == 201
    refused = await local.reserve("ben", tree / "src" / "api" / "routes.py")
    assert (refused.status, refused["error"]) == (409, "reservation_conflict")
    assert (refused["holder"], refused["note"], refused["left_s"]) == ("ann", "refactor", 60)
    assert await local.held() == [("ann", "src")]


async def test_several_paths_are_granted_all_or_none(local: Local, tree: Path) -> None:
    await local.reserve("ann", tree / "b")
    assert (await local.reserve("ben", tree / "a", tree / "b", tree / "c")).status == 409
    assert await local.held() == [("ann", "b")]


async def test_of_concurrent_requests_for_one_path_exactly_one_is_granted(local: Local, tree: Path) -> None:
    for number in range(8):
        await local.host.post("/v1/agents", name=f"a{number}")
    answers = await asyncio.gather(*(local.reserve(f"a{number}", tree) for number in range(8)))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 7


async def test_shared_reservations_exclude_only_exclusive_ones(local: Local, tree: Path) -> None:
    assert (await local.reserve("ann", tree, mode="shared")).status == 201
    assert (await local.reserve("ben", tree / "src", mode="shared")).status == 201
    assert (await local.reserve("ben", tree / "src")).status == 409


async def test_agents_that_share_a_path_may_write_it_and_others_may_not(local: Local, tree: Path) -> None:
    await local.host.post("/v1/agents", name="cat")
    for agent in ("ann", "ben"):
        await local.reserve(agent, tree, mode="shared")
    path = str(tree / "src" / "api")
    kept_off = {
        agent: bool((await local.host.acting_as(agent).ask("GET", "/v1/reservations", params={"path": path}))["items"])
        for agent in ("ann", "ben", "cat")
    }
    assert kept_off == {"ann": False, "ben": False, "cat": True}


async def test_two_names_of_one_file_are_one_path(local: Local, tree: Path) -> None:
    (tree / "link").symlink_to(tree / "src")
    await local.reserve("ann", tree / "link" / "api")
    assert (await local.reserve("ben", tree / "src" / ".." / "src" / "api")).status == 409


async def test_agent_extends_what_it_has(local: Local, tree: Path, clock: FakeClock) -> None:
    await local.reserve("ann", tree, for_s=60)
    clock.advance(50)
    await local.reserve("ann", tree, for_s=60)
    clock.advance(50)
    assert await local.held() == [("ann", "w")]


async def test_reservation_ends_after_its_time_and_survives_a_restart_and_a_set_clock(
    local: Local, tree: Path, clock: FakeClock
) -> None:
    await local.reserve("ann", tree, for_s=60)
    await restart(local.host)
    clock.step_wall(3_600)
    assert await local.held() == [("ann", "w")]
    clock.advance(61)
    assert await local.held() == []
    assert (await local.reserve("ben", tree)).status == 201


async def test_release_frees_only_ones_own_unless_forced(local: Local, tree: Path) -> None:
    await local.reserve("ann", tree / "a")
    assert (await local.ask("DELETE", "ben", paths=[str(tree / "a")]))["items"] == []
    assert len((await local.ask("DELETE", "ben", paths=[str(tree / "a")], force=True))["items"]) == 1
    await local.reserve("ann", tree / "a")
    await local.reserve("ann", tree / "b")
    assert len((await local.ask("DELETE", "ann"))["items"]) == 2
    assert await local.held() == []


async def test_reservation_ends_five_minutes_after_its_program(local: Local, tree: Path, clock: FakeClock) -> None:
    program = await asyncio.create_subprocess_exec("sleep", "1000")
    try:
        await local.host.post("/v1/agents", name="cid", pid=program.pid)
        await local.reserve("cid", tree, for_s=7_200)
        sweep = local.host.daemon.reservations.sweep
        clock.advance(GONE_S * 2)
        await sweep()
        assert await local.held() == [("cid", "w")]
    finally:
        program.kill()
        await program.wait()
    await sweep()
    clock.advance(GONE_S - 1)
    await sweep()
    assert await local.held() == [("cid", "w")]
    clock.advance(2)
    await sweep()
    assert await local.held() == []


async def test_retired_agent_holds_nothing(local: Local, tree: Path) -> None:
    await local.reserve("ann", tree)
    await local.host.post("/v1/agents/retire", name="ann")
    await local.host.daemon.reservations.sweep()
    assert await local.held() == []


async def test_renamed_agent_keeps_its_reservations(local: Local, tree: Path) -> None:
    await local.reserve("ann", tree)
    await local.host.post("/v1/agents/rename", name="ann", to="anna")
    assert await local.held() == [("anna", "w")]


@pytest.mark.parametrize("path", ["src", "", "~/x", "/w\0x"])
async def test_path_that_is_not_absolute_is_refused(local: Local, path: str) -> None:
    refused = await local.ask("POST", "ann", paths=[path])
    assert (refused.status, refused["error"]) == (400, "reservation_path_invalid")


def hook(host: Host, path: Path, agent: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {"hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": {"file_path": str(path)}}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "posthouse.cli.main",
            "hook",
            "claude-code",
            "guard",
            "--as",
            agent,
            "--dir",
            str(host.settings.directory),
        ],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environ,
        check=False,
    )


async def test_guard_denies_an_edit_with_holder_note_and_what_to_do(local: Local, tree: Path) -> None:
    await local.reserve("ben", tree / "src", for_s=600, note="refactor")
    denied = await asyncio.to_thread(hook, local.host, tree / "src" / "x.py", "ann")
    answer = json.loads(denied.stdout)["hookSpecificOutput"]
    assert (answer["hookEventName"], answer["permissionDecision"]) == ("PreToolUse", "deny")
    for part in ("ben has reserved", "600 s", "refactor", "posthouse send"):
        assert part in answer["permissionDecisionReason"]
    allowed = await asyncio.to_thread(hook, local.host, tree / "other.py", "ann")
    assert (allowed.returncode, allowed.stdout) == (0, "")


async def test_guard_allows_with_one_line_without_a_daemon_and_refuses_what_it_cannot_check(
    local: Local, tree: Path
) -> None:
    broken = await asyncio.to_thread(hook, local.host, tree / "x\0y", "ann")
    assert broken.returncode == 2
    assert "POSTHOUSE_GUARD=off" in broken.stderr
    off = await asyncio.to_thread(lambda: hook(local.host, tree / "x\0y", "ann", POSTHOUSE_GUARD="off"))
    assert (off.returncode, off.stderr) == (0, "")
    await local.host.down()
    absent = await asyncio.to_thread(hook, local.host, tree / "x", "ann")
    assert absent.returncode == 0
    assert len(absent.stdout.splitlines()) == 1
    assert "not checked" in absent.stdout


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_reserved_repository_path_is_locked_for_other_hosts_too(house: House, bob: Host, tree: Path) -> None:
    git(tree, "init", "-q")
    (tree / "src" / "a.py").write_text("x")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "first")
    clone = tree.parent / "clone"
    git(tree.parent, "clone", "-q", str(tree), str(clone))
    async with host_at(house, "alice") as alice:
        made = await alice.post("/v1/reservations", paths=[str(tree / "src")], repo=True)
        assert made["items"][0]["lock"] == f"repo/{git(tree, 'rev-parse', 'HEAD')}/src"
        refused = await bob.post("/v1/reservations", paths=[str(clone / "src" / "a.py")], repo=True)
        assert refused.status == 409
        assert (await bob.get("/v1/reservations"))["items"] == []
        await alice.daemon.repo_locks.renew()
        await alice.ask("DELETE", "/v1/reservations", json={})
        paths = [str(clone / "src")]
        await eventually(lambda: bob.post("/v1/reservations", paths=paths, repo=True), lambda said: said.status == 201)


async def test_shared_repository_path_that_is_reserved_alone_is_locked_alone(
    house: House, bob: Host, tree: Path
) -> None:
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "x")):
        git(tree, *words)
    clone = tree.parent / "clone"
    git(tree.parent, "clone", "-q", str(tree), str(clone))
    async with host_at(house, "alice") as alice:
        for mode in ("shared", "exclusive"):
            made = await alice.post("/v1/reservations", paths=[str(tree / "src")], repo=True, mode=mode)
            assert made.status == 201
        refused = await bob.post("/v1/reservations", paths=[str(clone / "src")], repo=True, mode="shared")
        assert (refused.status, refused["error"]) == (409, "held")


async def test_path_outside_of_a_repository_cannot_be_locked_for_one(local: Local, tree: Path) -> None:
    refused = await local.reserve("ann", tree, repo=True)
    assert refused["error"] == "reservation_repo_unknown"
    assert await local.held() == []
