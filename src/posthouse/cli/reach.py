"""Which relay a command speaks to, as whom, and how: options, then what this node has joined, then settings.

A mesh that was joined or made from here knows its relay; `--relay` says otherwise for one command. Imports of the
client stay inside functions, so that `posthouse --help` loads none of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from posthouse.cli.identity import KeyFile, load_key
from posthouse.cli.settings import load

if TYPE_CHECKING:
    from posthouse.client import Client, ClientOptions, RelayUrl

R = TypeVar("R")
_GROUP = Group("Relay", sort_key=4)

#: The option of commands that work in one mesh.
MeshName = Annotated[str, Parameter(name="--mesh", group=_GROUP, help="The mesh.")]


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class Reach:
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

    def visit(self, mesh: str | None, work: Callable[[Client], Awaitable[R]]) -> R:
        """Run `work` with a client of the relay and close it again."""
        import asyncio

        client = self.client(mesh)

        async def open_and_work() -> R:
            async with client:
                return await work(client)

        return asyncio.run(open_and_work())

    def _settings(self) -> dict[str, Any]:
        tls_ca = None if self.tls_ca is None else str(self.tls_ca)
        return load({"client.relay": self.relay, "client.tls_ca": tls_ca})


#: The default of every command's `reach`.
DEFAULT_REACH = Reach()
