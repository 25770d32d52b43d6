"""`posthouse mesh create`: make a mesh that this node administers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def create(
    mesh: Annotated[str, Parameter(help="Its name: letters, digits, `_` and `-`.")],
    /,
    *,
    open: Annotated[  # noqa: A002 - the word of the wire
        bool, Parameter(negative=(), show_default=False, help="Let any key that authenticates be a member.")
    ] = False,
    name: Annotated[str | None, Parameter(help="The name of this node in it; without it `admin`.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Make a mesh on a relay; this node is its first admin, and commands find the relay by the mesh from now on.

    For example:

        posthouse mesh create team
        posthouse mesh create lobby --open --name alice --relay relay.example:7420 --json
    """
    from posthouse.client import Membership, Memberships

    async def work(client: Client) -> dict[str, Any]:
        made = await client.meshes.create(mesh, is_open=open, name=name)
        Memberships.of_home().remember(mesh, Membership(client.url.origin, str(client.relay), name))
        return made | {"relay": client.url.origin}

    made = reach.visit(None, work)
    kind = "open to any key" if open else "for invited nodes"
    output.answer(made, f"mesh {mesh} made on {made['relay']}, {kind}")
    output.note(f"invite others with `posthouse mesh invite {mesh}`")
