"""`posthouse mesh invite`: one string that lets another host join."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.mesh.place import Mesh
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, Invite


def invite(
    mesh: Mesh,
    /,
    *,
    uses: Annotated[int, Parameter(validator=Number(gte=1), help="How many nodes may join with it.")] = 1,
    expires_s: Annotated[int, Parameter(validator=Number(gte=1), help="Seconds it works.")] = 86_400,
    role: Annotated[Literal["reader", "member", "admin"], Parameter(help="What it makes of who joins.")] = "member",
    address: Annotated[
        str | None, Parameter(help="HOST:PORT under which others reach the relay, if not as this node does.")
    ] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Make an invite and print it. Who has it can join: hand it over on a way you trust.

    On the other host: `posthouse join 'posthouse://...'`.

    For example:

        posthouse mesh invite team
        posthouse mesh invite team --role reader --uses 5 --expires-s 3600 --address relay.example:7420 --json
    """
    from posthouse.client.relay_url import relay_at

    async def work(client: Client) -> Invite:
        made = await client.meshes.invite(mesh, uses=uses, expires_s=expires_s, role=role)
        return made if address is None else replace(made, url=relay_at(address))

    made = reach.visit(mesh, work)
    value = {"invite": str(made), "mesh": made.mesh, "relay": made.relay, "role": role, "uses": uses}
    output.answer(value | {"expires_s": expires_s}, str(made))
