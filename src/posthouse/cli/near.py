"""Which daemon a command speaks to: `--dir`, or the usual directory of a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from posthouse.client.daemon import DaemonClient, DaemonPlace

_GROUP = Group("Daemon", sort_key=4)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class Near:
    """How the daemon is found; part of the signature of every command that speaks to one."""

    mesh: Annotated[str | None, Parameter(help="The mesh of the daemon; without it `main`.")] = None
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Its directory; without it ~/.posthouse/daemon/MESH.")
    ] = None

    def place(self) -> DaemonPlace:
        """Return where the daemon is."""
        from posthouse.client.daemon import daemon_place

        return daemon_place(self.directory, self.mesh)

    def client(self, timeout_s: float = 30.0) -> DaemonClient:
        """Make the client; nothing is connected yet."""
        from posthouse.client.daemon import DaemonClient

        return DaemonClient(self.directory, mesh=self.mesh, timeout_s=timeout_s)


#: The default of every command's `near`.
USUAL = Near()
