"""Daemons to test against: real ones, with their own directories, on the test's loop, over their real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import aiohttp

from posthouse.client import ClientOptions
from posthouse.daemon.daemon import Daemon
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.settings import DaemonSettings, MeshSettings
from tests.client.house import House
from tests.client.waiting import PATIENCE_S

QUICK = ClientOptions(reconnect_most_s=0.2, publish_timeout_s=20.0, connect_timeout_s=10.0)


@dataclass
class Said:
    """An answer of the local interface."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.body[name]


class Host:
    """One daemon and a local program that speaks to it."""

    def __init__(self, settings: DaemonSettings) -> None:
        self.settings = settings
        self.daemon: Daemon
        self._session: aiohttp.ClientSession | None = None

    @property
    def mesh(self) -> MeshNode:
        """The first mesh of the daemon."""
        return next(iter(self.daemon.meshes.nodes.values()))

    @property
    def node(self) -> str:
        return self.mesh.key.node

    async def up(self) -> None:
        """Start the daemon, or raise why it does not."""
        daemon = Daemon(self.settings)
        await daemon.start()
        self.daemon = daemon
        connector = aiohttp.UnixConnector(path=str(daemon.directory.socket), limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=PATIENCE_S))

    async def down(self) -> None:
        """End the daemon."""
        if self._session is not None:
            await self._session.close()
            self._session = None
            await self.daemon.stop()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def ask(self, method: str, path: str, **options: Any) -> Said:
        """Send one request over the Unix socket."""
        async with self.session.request(method, f"http://localhost{path}", **options) as response:
            text = await response.read()
            is_json = response.content_type == "application/json"
            body = await response.json() if is_json else text.decode()
            return Said(response.status, body, dict(response.headers))

    def acting_as(self, agent: str) -> AgentProgram:
        """Return a program on this host that acts for an agent."""
        return AgentProgram(self, agent)

    async def add_agent(self, name: str, **fields: Any) -> AgentProgram:
        """Add an agent and return a program that acts for it."""
        said = await self.post("/v1/agents", name=name, **fields)
        assert said.status in (200, 201), said.body
        return self.acting_as(said["name"])

    async def get(self, path: str, **params: Any) -> Said:
        return await self.ask("GET", path, params=params)

    async def post(self, path: str, **body: Any) -> Said:
        return await self.ask("POST", path, json=body)

    async def send(self, to: str, message: str, **more: Any) -> Said:
        return await self.post("/v1/send", to=to, message=message, **more)

    async def row(self, key: str) -> Any:
        return (await self.get(f"/v1/outbox/{key}")).body

    async def bodies(self) -> list[str]:
        """Return the bodies in the inbox, oldest first."""
        items = (await self.get("/v1/inbox", limit=1000))["items"]
        return [item["body"] for item in reversed(items)]

    async def connected(self) -> None:
        """Wait until the relay has let this daemon in."""
        async with asyncio.timeout(PATIENCE_S):
            await self.mesh.uplink.wait_sending()

    async def until_status(self, key: str, status: str) -> Any:
        """Wait until an outbox row has a status, and return it."""
        return await eventually(lambda: self.row(key), lambda row: row.get("status") == status)

    async def until_bodies(self, count: int) -> list[str]:
        """Wait until so many messages are in the inbox, and return their bodies."""
        found: list[str] = await eventually(self.bodies, lambda seen: len(seen) >= count)
        return found


class AgentProgram(Host):
    """A program on a host whose every request names its agent."""

    def __init__(self, host: Host, agent: str) -> None:
        super().__init__(host.settings)
        self._host = host
        self.agent = agent

    @property
    def node(self) -> str:
        return self._host.node

    async def ask(self, method: str, path: str, **options: Any) -> Said:
        return await self._host.ask(method, path, headers={"Posthouse-Agent": self.agent}, **options)


async def eventually(look: Callable[[], Awaitable[Any]], is_right: Callable[[Any], bool]) -> Any:
    """Look until what is seen is right; fails with what was seen last."""
    seen: Any = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = await look()
                if is_right(seen):
                    return seen
                await asyncio.sleep(0.01)
    except TimeoutError as late:
        raise AssertionError(f"it stayed at {seen!r}") from late


def make_host(folder: Path, relay: str, name: str = "a", **settings: Any) -> Host:
    """Make a host with a directory of its own; nothing runs yet."""
    given: dict[str, Any] = {
        "mesh": "main",
        "tcp": "off",
        "client": QUICK,
        "pins": folder / f"{name}-pins.json",
    }
    return Host(settings_of(folder / name, relay=relay, **(given | settings)))


_MESH_FIELDS = {each.name for each in fields(MeshSettings)}


def settings_of(directory: Path, **given: Any) -> DaemonSettings:
    """Return the settings of a daemon with one mesh; each value goes where it belongs."""
    mesh = {name: value for name, value in given.items() if name in _MESH_FIELDS}
    shared = {name: value for name, value in given.items() if name not in _MESH_FIELDS or name == "clock"}
    return DaemonSettings(directory=directory, meshes=(MeshSettings(**mesh),), **shared)


def change(settings: DaemonSettings, **given: Any) -> DaemonSettings:
    """Return settings with other values, for the daemon and for each of its meshes."""
    mesh = {name: value for name, value in given.items() if name in _MESH_FIELDS}
    shared = {name: value for name, value in given.items() if name not in _MESH_FIELDS or name == "clock"}
    return replace(settings, meshes=tuple(replace(each, **mesh) for each in settings.meshes), **shared)


@asynccontextmanager
async def running(*hosts: Host) -> AsyncIterator[None]:
    """Run hosts until the end of the block."""
    started: list[Host] = []
    try:
        for host in hosts:
            await host.up()
            started.append(host)
        yield
    finally:
        for host in started:
            await host.down()


@asynccontextmanager
async def host_at(house: House, name: str = "a", **settings: Any) -> AsyncIterator[Host]:
    """A daemon at a relay, let in."""
    host = make_host(house.folder, house.url, name, **settings)
    async with running(host):
        await host.connected()
        yield host


async def restart(host: Host, **settings: Any) -> None:
    """End a daemon and start it again in its directory."""
    await host.down()
    host.settings = change(host.settings, **settings)
    await host.up()
