"""Options that many commands share: the key file, the relay, the daemon, durations.

A mesh that was joined or created from this host knows its relay; `--relay` overrides it for one command. `--dir` or
`--mesh` selects the daemon. Imports of the client stay inside functions, so that `posthouse --help` loads none of
it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from posthouse.cli.config import find_home, load_settings
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client, ClientOptions, RelayUrl
    from posthouse.client.daemon import DaemonClient, DaemonPlace
    from posthouse.keys import NodeKey


#: The option of every command that acts as a node.
KeyFile = Annotated[
    Path | None, Parameter(name="--key-file", help="The key file; without it key.json in the home of posthouse.")
]


def key_path(given: Path | None) -> Path:
    """Return the key file to use."""
    return given or find_home().key


def load_key(given: Path | None) -> NodeKey:
    """Return the key to act with; when there is none, the hint says how to make one."""
    from posthouse.keys import keyfile

    path = key_path(given)
    try:
        return keyfile.load(path)
    except PosthouseError as failure:
        if failure.code != "key_file_missing":
            raise
        hint = "Run `posthouse keys new`, or `posthouse keys import FILE` to use an OpenSSH key."
        raise error("key_file_missing", path=str(path), hint=hint) from failure


R = TypeVar("R")
_RELAY_GROUP = Group("Relay", sort_key=4)
#: The option of commands that work in one mesh.
MeshName = Annotated[str, Parameter(name="--mesh", group=_RELAY_GROUP, help="The mesh.")]


@Parameter(name="*", group=_RELAY_GROUP)
@dataclass(frozen=True)
class RelayOptions:
    """How a relay is reached; part of the signature of every command that speaks to one."""

    relay: Annotated[
        str | None,
        Parameter(help="Its address; without it the one the mesh was joined at, else POSTHOUSE_CLIENT_RELAY."),
    ] = None
    key_file: KeyFile = None
    tls_ca: Annotated[Path | None, Parameter(help="Certificates of authorities to believe besides the system's.")] = (
        None
    )

    def url(self, mesh: str | None = None) -> RelayUrl:
        """Return the address of the relay, for a mesh if one is named."""
        from posthouse.client import Memberships, parse_relay_url

        values = self._settings()
        allow_plain = bool(values["client.allow_plain"].value)
        joined = Memberships.of_home().get(mesh) if self.relay is None and mesh is not None else None
        given = joined.relay if joined is not None else str(values["client.relay"].value)
        return parse_relay_url(given, allow_plain=allow_plain)

    def options(self) -> ClientOptions:
        """Return the options of a client."""
        from posthouse.client import ClientOptions

        values = self._settings()
        tls_ca = values["client.tls_ca"].value
        return ClientOptions(
            tls_ca=None if tls_ca is None else Path(str(tls_ca)).expanduser(),
            allow_plain=bool(values["client.allow_plain"].value),
            publish_timeout_s=float(str(values["client.timeout_s"].value)),
        )

    def client(self, mesh: str | None = None) -> Client:
        """Make the client, with the key of this node; nothing is connected yet."""
        from posthouse.client import Client
        from posthouse.model.node import DEFAULT_MESH

        return Client(self.url(mesh), load_key(self.key_file), mesh=mesh or DEFAULT_MESH, options=self.options())

    def run(self, mesh: str | None, work: Callable[[Client], Awaitable[R]]) -> R:
        """Run `work` with a client of the relay and close it again."""
        import asyncio

        client = self.client(mesh)

        async def open_and_work() -> R:
            async with client:
                return await work(client)

        return asyncio.run(open_and_work())

    def _settings(self) -> dict[str, Any]:
        tls_ca = None if self.tls_ca is None else str(self.tls_ca)
        return load_settings({"client.relay": self.relay, "client.tls_ca": tls_ca})


#: The default of every command's `relay_options`.
DEFAULT_RELAY = RelayOptions()
_DAEMON_GROUP = Group("Daemon", sort_key=4)


@Parameter(name="*", group=_DAEMON_GROUP)
@dataclass(frozen=True)
class DaemonOptions:
    """How the daemon is found; part of the signature of every command that speaks to one."""

    mesh: Annotated[str | None, Parameter(help="The mesh of the daemon; without it `main`.")] = None
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Its directory; without it ~/.posthouse/daemon/MESH.")
    ] = None

    def location(self) -> DaemonPlace:
        """Return where the daemon is."""
        from posthouse.client.daemon import daemon_place

        return daemon_place(self.directory, self.mesh)

    def client(self, timeout_s: float = 30.0) -> DaemonClient:
        """Make the client; nothing is connected yet."""
        from posthouse.client.daemon import DaemonClient

        return DaemonClient(self.directory, mesh=self.mesh, timeout_s=timeout_s)


#: The default of every command's `daemon_options`.
DEFAULT_DAEMON = DaemonOptions()
_DURATION = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_duration(text: str) -> float:
    """Return the seconds a text names, or raise a usage error."""
    found = _DURATION.fullmatch(text)
    if found is None or not int(found["number"]):
        raise error("usage", text=f"{text!r} is no duration", hint="Give a number and a unit: 90s, 15m, 2h, 1d.")
    return float(int(found["number"]) * _SECONDS[found["unit"]])
