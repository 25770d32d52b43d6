"""Options and arguments that many commands share: the key file, the relay, the daemon, texts, durations.

For a mesh that was joined or created on this host the relay is known; `--relay` overrides it for one command.
`--dir` or `--mesh` selects the daemon. The client is imported inside functions, so that `posthouse --help` does not
load it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from posthouse.cli.completers import complete_agents, complete_meshes
from posthouse.cli.config import Settings, find_home, load_settings
from posthouse.cli.lean_imports import import_aiohttp
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.cli.output import Output
    from posthouse.client import Client, ClientOptions, RelayUrl
    from posthouse.client.daemon import DaemonAddress, DaemonClient
    from posthouse.keys import NodeKey


#: The option of every command that signs as a node.
KeyFile = Annotated[
    Path | None,
    Parameter(name="--key-file", help="Key file to use instead of key.json in the posthouse home directory."),
]


def key_path(given: Path | None, mesh: str | None = None) -> Path:
    """Return the key file to use: the given one, else that of the daemon in the mesh, else that of the home.

    A home key from before daemons had one key per mesh may have rights there, so it stays in use until
    `posthouse daemon adopt` has moved them.
    """
    home = find_home()
    if given is not None:
        return given
    directory = home.path / "daemon" / (mesh or default_mesh())
    key = directory / "keypair.json"
    return key if key.exists() and (not home.key.exists() or has_adopted(directory)) else home.key


def has_adopted(directory: Path) -> bool:
    """Return True if the key of a mesh has taken over the rights of the home key there."""
    import msgspec

    try:
        return bool(msgspec.json.decode((directory / "identity.json").read_bytes()).get("is_adopted"))
    except (OSError, ValueError):
        return False


def default_mesh() -> str:
    """Return the mesh for commands without --mesh: the chosen one, else `main`."""
    from posthouse.client import Memberships
    from posthouse.model.node import DEFAULT_MESH

    return Memberships.of_home().chosen() or DEFAULT_MESH


def load_key(given: Path | None, mesh: str | None = None) -> NodeKey:
    """Return the key of this node; if there is none, the error says how to create one."""
    from posthouse.keys import keyfile

    path = key_path(given, mesh)
    try:
        return keyfile.load(path)
    except PosthouseError as failure:
        if failure.code != "key_file_missing":
            raise
        raise error("key_file_missing", path=str(path), hint=_KEY_HINT if given is None else None) from failure


_KEY_HINT = (
    "Run `posthouse up`, which sets up this host, or `posthouse join INVITE`. For a key alone: `posthouse keys new` or "
    "`posthouse keys import FILE` to use an OpenSSH key."
)
R = TypeVar("R")
_RELAY_GROUP = Group("Relay", sort_key=4)
#: The option of commands that work in one mesh.
MeshName = Annotated[
    str | None,
    Parameter(
        name="--mesh",
        group=_RELAY_GROUP,
        completer=complete_meshes,
        help="Mesh to use. Default: the one chosen with `posthouse use`.",
    ),
]


@Parameter(name="*", group=_RELAY_GROUP)
@dataclass(frozen=True)
class RelayOptions:
    """The relay to use, and the key to use there; part of the signature of every command that connects to a relay."""

    relay: Annotated[
        str | None,
        Parameter(help="Address of the relay. Default: where the mesh was joined, else POSTHOUSE_CLIENT_RELAY."),
    ] = None
    key_file: KeyFile = None
    tls_ca: Annotated[Path | None, Parameter(help="Certificate authorities to trust besides the system's.")] = None

    def url(self, mesh: str | None = None) -> RelayUrl:
        """Return the address of the relay: the given one, else that of the mesh, else the setting."""
        from posthouse.client import Memberships, parse_relay_url

        values = self._settings()
        joined = Memberships.of_home().get(mesh) if self.relay is None and mesh is not None else None
        address = joined.relay if joined is not None else values.text("client.relay")
        return parse_relay_url(address, allow_plain=values.is_on("client.allow_plain"))

    def options(self) -> ClientOptions:
        """Return the options of a client."""
        return client_options(self._settings())

    def client(self, mesh: str | None = None) -> Client:
        """Return a client with the key of this node; it is not connected yet."""
        from posthouse.cli.output import show

        import_aiohttp()
        from posthouse.client import Client
        from posthouse.model.node import DEFAULT_MESH

        client = Client(self.url(mesh), self.load_key(mesh), mesh=mesh or DEFAULT_MESH, options=self.options())
        client.meshes.on_rotated = lambda member: show(sys.stderr, str(member))
        return client

    def load_key(self, mesh: str | None) -> NodeKey:
        """Return the key of this node in a mesh."""
        return load_key(self.key_file, mesh)

    def run(self, mesh: str | None, work: Callable[[Client], Awaitable[R]]) -> R:
        """Run `work` with a client of the relay and close the client afterwards."""
        import asyncio

        client = self.client(mesh)

        async def open_and_work() -> R:
            async with client:
                return await work(client)

        return asyncio.run(open_and_work())

    def _settings(self) -> Settings:
        tls_ca = None if self.tls_ca is None else str(self.tls_ca)
        return load_settings({"client.relay": self.relay, "client.tls_ca": tls_ca})


def client_options(values: Settings) -> ClientOptions:
    """Return the options of a relay client, as the settings say."""
    from posthouse.client import ClientOptions

    return ClientOptions(
        tls_ca=values.optional_path("client.tls_ca"),
        allow_plain=values.is_on("client.allow_plain"),
        publish_timeout_s=values.number("client.timeout_s"),
    )


#: The default of every command's `relay_options`.
DEFAULT_RELAY = RelayOptions()


@Parameter(name="*", group=_RELAY_GROUP)
@dataclass(frozen=True)
class MeshOptions(RelayOptions):
    """The mesh to use, with its relay and key; part of the signature of every command that works in one mesh."""

    mesh: MeshName = None

    @property
    def name(self) -> str:
        """The mesh: the given one, else the chosen one."""
        return self.mesh or default_mesh()


def with_mesh(relay_options: RelayOptions, mesh: str | None) -> MeshOptions:
    """Return the options of a relay, extended by a mesh."""
    return MeshOptions(relay_options.relay, relay_options.key_file, relay_options.tls_ca, mesh)


#: The default of every command's `mesh_options`.
DEFAULT_MESH_OPTIONS = MeshOptions()
_DAEMON_GROUP = Group("Daemon", sort_key=4)


#: The option of every command that an agent may run.
ActingAgent = Annotated[
    str | None,
    Parameter(
        group=_DAEMON_GROUP,
        completer=complete_agents,
        help="Agent of this host to act for. Default: POSTHOUSE_AGENT, else the host itself.",
    ),
]


@Parameter(name="*", group=_DAEMON_GROUP)
@dataclass(frozen=True)
class DaemonOptions:
    """The daemon to use; part of the signature of every command that connects to one."""

    mesh: Annotated[
        str | None,
        Parameter(completer=complete_meshes, help="Mesh to use. Default: the one chosen with `posthouse use`."),
    ] = None
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Directory of the daemon. Default: ~/.posthouse/daemon.")
    ] = None
    agent: ActingAgent = None

    def location(self) -> DaemonAddress:
        """Return the directory, socket and address of the daemon."""
        from posthouse.client.daemon import daemon_address

        return daemon_address(self.directory, self.mesh)

    def root(self) -> Path:
        """Return the directory that a daemon of this version uses, even while one of an earlier version runs."""
        location = self.location()
        return location.directory.parent if location.is_former else location.directory

    def chosen_mesh(self) -> str:
        """Return the mesh: the given one, the chosen one, `main`, or the first that the daemon has."""
        from posthouse.client import Memberships
        from posthouse.daemon.directory import DaemonDirectory
        from posthouse.model.node import DEFAULT_MESH

        named = self.location().mesh
        if named is not None:
            return named
        present = DaemonDirectory(self.root()).meshes()
        chosen = Memberships.of_home().chosen() if self.directory is None else None
        wanted = (chosen, DEFAULT_MESH, *present)
        return next((name for name in wanted if name in present), None) or chosen or DEFAULT_MESH

    def client(self, timeout_s: float = 30.0) -> DaemonClient:
        """Return a client of the daemon; it is not connected yet."""
        from posthouse.client.daemon import DaemonClient

        return DaemonClient(self.directory, mesh=self.mesh, timeout_s=timeout_s, agent=self.agent)


def note_membership(daemon: DaemonClient, output: Output) -> None:
    """Print a note if the relay does not admit this host, with the commands that change this."""
    try:
        health = daemon.health()
    except PosthouseError:  # the command has done its work: a note must not make it fail
        return
    if health.refusal == "not_member":
        add = f"posthouse mesh members {health.mesh} --add {health.node} --name NAME"
        output.note(
            f"this host is not a member of the mesh {health.mesh}; messages wait. Join with `posthouse join INVITE`, "
            f"or ask an admin to run `{add}`"
        )


#: The default of every command's `daemon_options`.
DEFAULT_DAEMON = DaemonOptions()


def read_text(text: str) -> str:
    """Return an argument, or all of stdin if the argument is `-`."""
    return sys.stdin.read() if text == "-" else text


def read_file(path: Path) -> bytes:
    """Return the bytes of a file, or of stdin if the path is `-`; raise a usage error if it cannot be read."""
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as failure:
        raise error("usage", text=f"{path} cannot be read: {failure.strerror}") from failure


def parse_meta(text: str | None, option: str = "--meta") -> dict[str, Any] | None:
    """Return the JSON object of an option, or raise a usage error."""
    import msgspec

    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except ValueError as fault:
        raise error("usage", text=f"{option} is not a JSON object: {fault}") from fault


_DURATION = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhd])")
_SECONDS_ONLY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_duration(text: str, *, hint: str = "Give a number and a unit: 90s, 15m, 2h, 1d.") -> float:
    """Return the seconds of a text such as 15m, or raise a usage error."""
    found = _DURATION.fullmatch(text)
    if found is None or not int(found["number"]):
        raise error("usage", text=f"{text!r} is not a duration", hint=hint)
    return float(int(found["number"]) * _SECONDS[found["unit"]])


def parse_wait(text: str) -> float:
    """Return a waiting time in seconds: a plain number is in seconds, 10s and 5m have a unit."""
    return float(text) if _SECONDS_ONLY.fullmatch(text) else parse_duration(text)
