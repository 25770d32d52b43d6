"""`posthouse mesh rule`: require the fence of a lock for certain events of a mesh.

A rule keeps writers that hold no lock from replacing what the lock protects. Members can list the rules, admins
change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.mesh_invites import Mesh
from posthouse.cli.options import DEFAULT_RELAY, RelayOptions
from posthouse.cli.output import PLAIN, Output, table

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.model.fence_rules import FenceRule


Kind = Annotated[
    int, Parameter(validator=Number(gte=10_000, lte=39_999), help="Replaceable or addressable kind of the events.")
]
Prefix = Annotated[str, Parameter(help="Only events whose d tag begins with this text.")]


def ls(mesh: Mesh, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """List the fence rules of a mesh.

    For example:

        posthouse mesh rule ls team
        posthouse mesh rule ls team --json
    """

    async def work(client: Client) -> list[FenceRule]:
        return await client.meshes.fence_rules(mesh)

    found = relay_options.run(mesh, work)
    rows = [(str(rule.kind), rule.d_prefix, rule.resource) for rule in found]
    output.result({"mesh": mesh, "rules": found}, table(("kind", "d prefix", "needs the fence of"), rows))


def set_(
    mesh: Mesh,
    kind: Kind,
    resource: Annotated[str, Parameter(help="The resource whose fence is needed; {d} stands for the d tag.")],
    /,
    *,
    prefix: Prefix = "",
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Refuse events of a kind unless they are written under the fence of a resource; admins only.

    If several rules match an event, the one with the longest prefix applies. Events that are already stored stay.

    For example:

        posthouse mesh rule set team 30000 'builds/{d}'
        posthouse mesh rule set team 30000 deploy/production --prefix release/
    """

    async def work(client: Client) -> None:
        await client.meshes.set_fence_rule(mesh, kind, resource, d_prefix=prefix)

    relay_options.run(mesh, work)
    which = f"kind {kind}" + (f" with a d that begins with {prefix!r}" if prefix else "")
    value = {"mesh": mesh, "kind": kind, "d_prefix": prefix, "resource": resource}
    output.result(value, f"{mesh}: events of {which} need the fence of {resource}")


def rm(
    mesh: Mesh,
    kind: Kind,
    /,
    *,
    prefix: Prefix = "",
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Remove the fence rule of a kind and prefix; admins only.

    For example:

        posthouse mesh rule rm team 30000
        posthouse mesh rule rm team 30000 --prefix release/ --json
    """

    async def work(client: Client) -> None:
        await client.meshes.remove_fence_rule(mesh, kind, d_prefix=prefix)

    relay_options.run(mesh, work)
    value = {"mesh": mesh, "kind": kind, "d_prefix": prefix, "removed": True}
    output.result(value, f"{mesh}: removed the rule of kind {kind}" + (f" and prefix {prefix}" if prefix else ""))


rules = noun("rule", "Require the fence of a lock for certain events of a mesh.")
rules.command(ls, name="ls")
rules.command(set_, name="set")
rules.command(rm, name="rm")
