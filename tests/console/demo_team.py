"""A team to look at: a relay, two hosts with agents that talk, and everything an operator may find there.

Real relay, daemons and clients on the test's loop, over real sockets; nothing is drawn that did not happen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from posthouse.bus.bus import Bus
from posthouse.cli.trace import bus_steps
from posthouse.client import Client, Published
from posthouse.client.daemon import AsyncDaemonClient, DaemonAddress
from posthouse.console.console_server import ConsoleServer
from posthouse.console.upstream import Upstream
from posthouse.keys import NodeKey
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.node import node_hex
from tests.client.house import ADMIN, House, open_house
from tests.client.waiting import take
from tests.daemon.hosts import AgentProgram, Host, eventually, host_at
from tests.relay.webhooks.receivers import LOOPBACK

READER_KEY = NodeKey(b"r" * 32)  # a host that answers nothing
AGENTS = {
    "atlas": {
        "planner": ("claude-code", "working", "Splits the release into tasks and hands them out"),
        "builder": ("codex", "working", "Builds and packages the service"),
        "reviewer": ("claude-code", "idle", "Reads every change before it is merged"),
    },
    "borealis": {
        "tester": ("gemini-cli", "working", "Runs the integration suite on real hardware"),
        "docs": ("cursor", "dnd", "Keeps the handbook current"),
    },
}
TALK: Sequence[tuple[str, str, str]] = (
    ("planner", "builder@atlas", "Build 2.4.0 from the release branch\nTag it once the tests are green."),
    ("builder", "planner@atlas", "Started. The image is ready in about ten minutes."),
    ("planner", "builder@atlas", "Good. Hold the lock on deploy/production until the smoke test is through."),
    ("builder", "planner@atlas", "I have it. Smoke test:\n  - login\n  - export of a report\n  - webhook retry"),
    ("planner", "tester@borealis", "Can you run the integration suite against the 2.4.0 candidate?"),
    ("tester", "planner@atlas", "Yes. 412 tests, about eight minutes on the two boards."),
    ("planner", "reviewer@atlas", "Please look at the change of the retry logic before we tag"),
    ("builder", "tester@borealis", "The candidate is at registry/app:2.4.0-rc1"),
    ("tester", "builder@atlas", "Pulled it; the checksum matches."),
    ("planner", "docs@borealis", "The flag --since is new in 2.4.0, the handbook should say so"),
    ("docs", "planner@atlas", "Added to chapter 4. The example uses the output of the candidate."),
)


@dataclass
class Team:
    """The running demo team."""

    folder: Path
    house: House
    hosts: dict[str, Host]
    agents: dict[str, AgentProgram] = field(default_factory=dict)
    consoles: list[ConsoleServer] = field(default_factory=list)
    admin: Client | None = None
    #: of atlas
    bus: Bus | None = None

    @asynccontextmanager
    async def console(
        self, host: str = "atlas", key: NodeKey | None = None, clock: Clock | None = None, **options: Any
    ) -> AsyncIterator[ConsoleServer]:
        """Run the console of a host: atlas is an admin of the mesh, borealis is not."""
        daemon = AsyncDaemonClient(DaemonAddress(self.hosts[host].settings.directory), agent="")
        relay = self.house.client(key or self.hosts[host].mesh.key)
        upstream = Upstream(daemon, relay, clock or system_clock(), **options)
        upstream.find_bus_steps = partial(bus_steps, _bus_folder(self.folder))
        server = ConsoleServer(upstream, clock or system_clock())
        await server.start()
        try:
            yield server
        finally:
            await server.stop()

    def program(self, agent: str) -> AgentProgram:
        return self.agents[agent]

    async def say(self, agent: str, to: str, text: str, reply_to: str | None = None) -> str:
        """Let an agent send a message; return its id."""
        more = {} if reply_to is None else {"reply_to_id": reply_to}
        said = await self.program(agent).send(to, text, **more)
        assert said.status in (200, 202), said.body
        return str(said["message_id"])


@asynccontextmanager
async def demo_team(folder: Path) -> AsyncIterator[Team]:
    """Run the team until the end of the block."""
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(open_house(folder, sending=LOOPBACK))
        bus = await stack.enter_async_context(Bus(_bus_folder(folder)))
        hosts = {
            name: await stack.enter_async_context(
                host_at(house, name, tcp="off", bus_dir=_bus_folder(folder) if name == "atlas" else None)
            )
            for name in AGENTS
        }
        team = Team(folder, house, hosts, bus=bus)
        team.admin = house.client(ADMIN)
        await team.admin.meshes.add_member("main", ADMIN.node, "operator", "admin")
        for name, host in hosts.items():
            await team.admin.meshes.add_member("main", host.node, name, "admin" if name == "atlas" else "member")
        await team.admin.meshes.add_member("main", READER_KEY.node, "cassini")
        await team.admin.meshes.create_topic("main", "releases")
        await _add_agents(team)
        await _talk(team)
        await _fill_queues(team)
        await _take_locks(team)
        yield team
        await team.admin.close()


def _bus_folder(folder: Path) -> Path:
    return folder / "atlas-bus"


async def _add_agents(team: Team) -> None:
    for host, agents in AGENTS.items():
        for name, (program, status, summary) in agents.items():
            process = {} if name == "docs" else {"pid": os.getpid()}
            team.agents[name] = await team.hosts[host].add_agent(
                name, program=program, status=status, summary=summary, **process
            )
    for each in team.hosts.values():  # each learns the agents of the other from its profile
        await eventually(
            lambda each=each: each.get("/v1/peers"),  # type: ignore[misc]
            lambda said: sum(len(peer["agents"]) for peer in said["peers"]) >= 5,
        )
        assert (await each.post("/v1/topic/subscribe", topic="releases")).status == 200


async def _talk(team: Team) -> None:
    asked: dict[tuple[str, str], str] = {}
    for agent, to, text in TALK:
        other = to.partition("@")[0]
        asked[agent, other] = await team.say(agent, to, text, asked.get((other, agent)))
        await eventually(
            lambda other=other: team.program(other).bodies(),  # type: ignore[misc]
            lambda bodies, text=text: text in bodies,  # type: ignore[misc]
        )
    await team.say("planner", "#releases", "2.4.0 is planned for today, 16:00 UTC")
    await _talk_from_the_bus(team)
    await team.hosts["atlas"].mesh.uplink.wait_sending()
    for name in ("planner", "builder", "tester"):
        await team.program(name).post("/v1/inbox/seen", all=True)


FROM_THE_BUS = "Can you repeat the smoke test of 2.4.0-rc1?"


async def _talk_from_the_bus(team: Team) -> None:
    """Let the builder's program, which only knows the bus of its host, write to an agent of another host."""
    assert team.bus is not None
    await team.bus.register_endpoint("agents.builder")
    subject = f"mesh.main.out.dm.{node_hex(team.hosts['borealis'].node)}.tester"
    await team.bus.publish(subject, {"content": FROM_THE_BUS}, from_="agents.builder")
    await eventually(team.program("tester").bodies, lambda bodies: FROM_THE_BUS in bodies)


async def _fill_queues(team: Team) -> None:
    """Leave a dead letter and waiting messages at the relay, and a dead row in the outbox."""
    reader = team.house.client(READER_KEY)
    async with await reader.receive() as mailbox:
        await team.say("reviewer", "cassini", "The nightly report, in the old format")
        [delivery] = await take(mailbox, 1)
        assert await mailbox.reject(delivery, "unknown schema version 1")
    await reader.close()
    for part in ("image", "manifest", "checksums"):
        await team.say("builder", "cassini", f"Please archive the {part} of 2.4.0-rc1")
    host = team.hosts["atlas"]
    submit = host.mesh.drain._submit

    async def refuse(events: Sequence[Event]) -> list[Published | PosthouseError]:
        return [error("message_malformed", reason="the topic is archived")] * len(events)

    await host.until_status(await team.say("builder", "cassini", "Please archive the notes of 2.4.0-rc1"), "done")
    host.mesh.drain._submit = refuse
    await host.until_status(await team.say("planner", "#releases", "Notes for 2.3.9"), "dead")
    host.mesh.drain._submit = submit


async def _take_locks(team: Team) -> None:
    said = await team.program("builder").post("/v1/locks/acquire", resource="deploy/production", lease_ms=540_000)
    assert said.status == 200, said.body
    waiting = team.program("planner").post(
        "/v1/locks/acquire", resource="deploy/production", lease_ms=60_000, wait_ms=600_000
    )
    task = asyncio.get_running_loop().create_task(waiting)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await team.program("tester").post("/v1/locks/acquire", resource="board/two", lease_ms=300_000)
    for agent, resource in (("docs", "handbook"), ("tester", "board/one"), ("planner", "release/notes")):
        held = await team.program(agent).post("/v1/locks/acquire", resource=resource, lease_ms=60_000)
        await team.program(agent).post("/v1/locks/release", resource=resource, token=held["token"])
    said = await team.program("reviewer").post(
        "/v1/reservations", paths=["/srv/shop/payments/retry.py"], for_s=1_800, note="reading the retry logic"
    )
    assert said.status == 201, said.body
