"""`posthouse mesh invite` and `posthouse mesh invites`: invite other nodes to a mesh.

The code of an invite is sent only to the relay whose key the invite names. A relay does not know the codes of its
invites: lists show ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.completers import complete_meshes
from posthouse.cli.options import DEFAULT_RELAY, RelayOptions
from posthouse.cli.output import PLAIN, Output, format_moment, table

if TYPE_CHECKING:
    from posthouse.client import ActiveInvite, Client, Invite


#: The mesh, as the first argument.
Mesh = Annotated[str, Parameter(completer=complete_meshes, help="Name of the mesh.")]


@Parameter(name="*")
@dataclass(frozen=True)
class InviteOptions:
    """What an invite allows; shared by `posthouse invite` and `posthouse mesh invite`."""

    uses: Annotated[int, Parameter(validator=Number(gte=1), help="Number of hosts that may join with it.")] = 1
    expires_s: Annotated[int, Parameter(validator=Number(gte=1), help="Seconds until it expires.")] = 86_400
    role: Annotated[Literal["reader", "member", "admin"], Parameter(help="Role of the hosts that join.")] = "member"
    address: Annotated[
        str | None,
        Parameter(help="HOST:PORT where other hosts reach the relay; separate several by commas. Default: detected."),
    ] = None

    def make(self, mesh: str, relay_options: RelayOptions) -> Invite:
        """Make the relay create an invite with the address at which this host reaches the relay."""

        async def work(client: Client) -> Invite:
            return await client.meshes.invite(mesh, uses=self.uses, expires_s=self.expires_s, role=self.role)

        return relay_options.run(mesh, work)


#: The default of both commands' `invite_options`.
ONE_MEMBER = InviteOptions()


def invite(
    mesh: Mesh,
    /,
    *,
    invite_options: InviteOptions = ONE_MEMBER,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Create an invite and print it. Anyone who has the invite can join; send it over a channel you trust.

    The other host joins with `posthouse join 'posthouse://...'`.

    For example:

        posthouse mesh invite team
        posthouse mesh invite team --role reader --uses 5 --expires-s 3600
        posthouse mesh invite team --address relay.example:7420 --json
    """
    from posthouse.client.relay_url import relay_at

    made, given = invite_options.make(mesh, relay_options), invite_options
    if given.address is not None:
        made = replace(made, url=relay_at(given.address))
    value = {"invite": str(made), "mesh": made.mesh, "relay": made.relay, "role": given.role, "uses": given.uses}
    output.result(value | {"expires_s": given.expires_s}, str(made))


def ls(mesh: Mesh, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """List the invites to a mesh that can still be used.

    For example:

        posthouse mesh invites ls team
        posthouse mesh invites ls team --json
    """

    async def work(client: Client) -> list[ActiveInvite]:
        return await client.meshes.invites(mesh)

    found = relay_options.run(mesh, work)
    rows = [
        (each.id, each.role, str(each.uses_left), format_moment(each.expires_at_ns), each.creator) for each in found
    ]
    output.result({"mesh": mesh, "invites": found}, table(("id", "role", "uses left", "expires", "creator"), rows))


def revoke(
    mesh: Mesh,
    invite_id: Annotated[str, Parameter(name="id", help="Id of the invite; `posthouse mesh invites ls` lists them.")],
    /,
    *,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Revoke an invite: no other node can join with it. Nodes that joined with it stay members.

    For example:

        posthouse mesh invites revoke team 01ARZ3NDEKTSV4RRFFQ69G5FAV
        posthouse mesh invites revoke team 01ARZ3NDEKTSV4RRFFQ69G5FAV --json
    """

    async def work(client: Client) -> None:
        await client.meshes.revoke_invite(mesh, invite_id)

    relay_options.run(mesh, work)
    output.result({"mesh": mesh, "id": invite_id, "revoked": True}, f"revoked invite {invite_id} to {mesh}")
    output.note("nodes that joined with it are still members; `posthouse mesh members` lists them")


invites = noun("invites", "List and revoke the invites to a mesh.")
invites.command(ls, name="ls")
invites.command(revoke, name="revoke")
