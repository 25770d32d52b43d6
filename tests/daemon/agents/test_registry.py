"""The agents of a host over its routes: names, processes that use them, rename and retire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from posthouse.daemon.agents.processes import ProcessRef, find_process, require_process
from posthouse.daemon.agents.registry import AgentFields, AgentRegistry
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from tests.daemon.hosts import make_host, restart, running

NOWHERE = "ws://127.0.0.1:9"


@pytest.fixture
def programs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three processes that run until the test ends."""
    with ExitStack() as opened:
        started = []
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            started.append(opened.enter_context(process))
            opened.callback(process.kill)
        yield started


async def test_an_added_agent_is_listed_and_survives_a_restart(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        said = await host.post("/v1/agents", name="claude", program="claude-code", capabilities=["review"])
        assert (said.status, said["name"], said["receipts"], said["status"]) == (201, "claude", True, "idle")
        again = await host.post("/v1/agents", name="claude", summary="reviews")
        assert (again.status, again["program"], again["summary"]) == (200, "claude-code", "reviews")
        await restart(host)
        (listed,) = (await host.get("/v1/agents"))["items"]
        assert (listed["name"], listed["capabilities"], listed["summary"]) == ("claude", ["review"], "reviews")


@pytest.mark.parametrize("name", ["Claude", "-c", "", "a" * 33, "claude@laptop", "cl aude", "ü"])
async def test_a_bad_name_is_refused_with_the_rule(tmp_path: Path, name: str) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        said = await host.post("/v1/agents", name=name)
        assert (said.status, said["error"]) == (400, "agent_name_invalid")
        assert "32 characters" in said["hint"]


async def test_a_request_for_an_unknown_agent_is_refused_with_the_command_that_adds_it(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        for path in ("/v1/inbox", "/v1/peers", "/v1/outbox"):
            said = await host.acting_as("ghost").get(path)
            assert (said.status, said["error"]) == (404, "agent_unknown")
            assert "posthouse agent add ghost" in said["hint"]
        assert (await host.get("/v1/inbox", agent="ghost"))["error"] == "agent_unknown"
        assert (await host.acting_as("ghost").get("/v1/health")).status == 200
        assert (await host.acting_as("ghost").get("/v1/agents")).status == 200
        await host.add_agent("ghost")
        assert (await host.get("/v1/inbox", agent="ghost")).status == 200
        both = await host.acting_as("ghost").get("/v1/inbox", agent="other")
        assert (both.status, both["error"]) == (400, "parameter_invalid")


async def test_a_second_running_process_gets_the_next_name(
    tmp_path: Path, programs: list[subprocess.Popen[bytes]]
) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):

        async def bind(process: subprocess.Popen[bytes]) -> str:
            said = await host.post("/v1/agents", name="claude", program="claude-code", pid=process.pid)
            return str(said["name"])

        first, second, third = programs
        assert [await bind(first), await bind(second), await bind(first)] == ["claude", "claude-2", "claude"]
        first.kill()
        first.wait()
        assert await bind(second) == "claude-2", "a process keeps the name it has"
        assert await bind(third) == "claude", "the name of an ended process is free again"
        states = {agent["name"]: agent["is_running"] for agent in (await host.get("/v1/agents"))["items"]}
        assert states == {"claude": True, "claude-2": True}


async def test_a_process_that_does_not_exist_cannot_be_bound(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        for pid in (-1, 0, 2**22 + 1):
            said = await host.post("/v1/agents", name="claude", pid=pid)
            assert (said.status, said["error"]) == (404, "process_unknown")
        assert (await host.get("/v1/agents"))["items"] == []


async def test_a_numbered_name_of_another_program_is_skipped(
    tmp_path: Path, programs: list[subprocess.Popen[bytes]]
) -> None:
    registry = AgentRegistry(tmp_path / "agents.db", FakeClock())
    first, second = (require_process(process.pid) for process in programs[:2])
    try:
        await registry.register("claude-2", AgentFields(program="codex"))
        await registry.register("claude", AgentFields(program="claude-code"), first)
        named = await registry.register("claude", AgentFields(program="claude-code"), second)
        assert named.agent.name == "claude-3"
    finally:
        registry.close()


async def test_a_renamed_agent_leaves_a_name_that_says_where_it_went(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        await host.add_agent("claude", summary="reviews")
        renamed = await host.post("/v1/agents/rename", name="claude", to="reviewer")
        assert (renamed["name"], renamed["summary"]) == ("reviewer", "reviews")
        listed = {agent["name"]: agent for agent in (await host.get("/v1/agents"))["items"]}
        assert "reviewer" in listed["claude"]["retired_reason"]
        again = await host.post("/v1/agents/rename", name="claude", to="x")
        assert (again.status, again["error"]) == (409, "agent_retired")
        back = await host.post("/v1/agents/rename", name="reviewer", to="claude")
        assert back.status == 200, "an agent may take its old name back"
        await host.add_agent("codex")
        taken = await host.post("/v1/agents/rename", name="claude", to="codex")
        assert (taken.status, taken["error"]) == (409, "agent_exists")


async def test_a_retired_agent_is_kept_with_its_reason_and_can_come_back(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        await host.add_agent("claude")
        retired = await host.post("/v1/agents/retire", name="claude", reason="moved to build")
        assert retired["retired_reason"] == "moved to build"
        assert (await host.post("/v1/agents/retire", name="claude"))["error"] == "agent_retired"
        assert (await host.post("/v1/agents/retire", name="nobody"))["error"] == "agent_unknown"
        await restart(host)
        assert (await host.get("/v1/agents"))["items"][0]["retired_reason"] == "moved to build"
        assert (await host.post("/v1/agents", name="claude")).status == 200
        assert (await host.get("/v1/agents"))["items"][0]["retired_at"] is None


async def test_texts_that_would_burst_the_profile_are_refused(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        for fields in ({"summary": "s" * 201}, {"capabilities": ["c"] * 17}, {"program": ""}, {"status": "asleep"}):
            said = await host.post("/v1/agents", name="claude", **fields)
            assert (said.status, said["error"]) == (400, "body_invalid"), fields
        assert (await host.get("/v1/agents/claude"))["error"] == "agent_unknown"


async def test_a_host_has_at_most_64_active_agents(tmp_path: Path) -> None:
    registry = AgentRegistry(tmp_path / "agents.db", FakeClock())
    try:
        for number in range(64):
            await registry.register(f"a{number}", AgentFields())
        with pytest.raises(PosthouseError) as failure:
            await registry.register("one-more", AgentFields())
        assert failure.value.code == "agents_full"
        await registry.retire("a0")
        assert (await registry.register("one-more", AgentFields())).is_new
    finally:
        registry.close()


async def test_a_registration_is_recorded_in_the_journal(tmp_path: Path) -> None:
    registry = AgentRegistry(tmp_path / "agents.db", FakeClock())
    try:
        await registry.register("claude", AgentFields(program="claude-code"))
        await registry.register("claude", AgentFields(summary="busy"))
        await registry.rename("claude", "reviewer")
        await registry.retire("reviewer")
        query = "SELECT type, ref FROM journal WHERE type GLOB 'agent.*' ORDER BY seq"
        found = registry.store.pool.run_blocking(lambda db: db.execute(query).fetchall())
        assert found == [("agent.added", "claude"), ("agent.renamed", "claude"), ("agent.retired", "reviewer")]
    finally:
        registry.close()


def test_a_process_is_the_same_only_with_its_start_time(programs: list[subprocess.Popen[bytes]]) -> None:
    found = find_process(programs[0].pid)
    assert found is not None
    assert found.is_running()
    assert not found._replace(start="earlier").is_running()
    programs[0].kill()
    programs[0].wait()
    assert not found.is_running()


def test_a_process_is_known_by_its_number_alone_where_proc_is_missing(
    programs: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    found = find_process(programs[0].pid, tmp_path)
    assert found == ProcessRef(programs[0].pid, "")
    assert found.is_running(tmp_path)
    programs[0].kill()
    programs[0].wait()
    assert not found.is_running(tmp_path)
