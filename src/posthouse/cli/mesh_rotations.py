"""`posthouse mesh rotations`: new keys of members that wait for approval by an admin of the mesh.

The command applies a change first if one is given, then lists. A key that waits has no rights in the mesh; its messages
queue up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.mesh_invites import Mesh
from posthouse.cli.options import DEFAULT_RELAY, RelayOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.clock import format_utc
from posthouse.model.errors import error
from posthouse.model.node import is_key_digits, node_from_hex

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.model.rotation import KeyApprovals


def rotations(
    mesh: Mesh,
    /,
    *,
    approve: Annotated[
        str | None, Parameter(help="Member name or new key: give this key the rights of its member.")
    ] = None,
    refuse: Annotated[
        str | None, Parameter(help="Member name or new key: remove the member, and deny this key all access.")
    ] = None,
    require: Annotated[
        bool | None,
        Parameter(
            negative="--no-require",
            show_default=False,
            help="Whether new keys of members wait for approval or get their rights at once.",
        ),
    ] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List new keys of members that wait for approval; with an option, first approve or refuse one; for admins.

    A key waits after a rotation, a recovery or a replacement. Ask the member on another channel whether the key is
    theirs before you approve it.

    For example:

        posthouse mesh rotations team --require
        posthouse mesh rotations team --approve bob
        posthouse mesh rotations team --refuse bob --json
    """
    from rich.console import Group
    from rich.text import Text

    if approve is not None and refuse is not None:
        raise error("value_invalid", name="--refuse", reason="it cannot be combined with --approve")

    async def work(client: Client) -> KeyApprovals:
        found = await client.keys.held(mesh) if require is None else await client.keys.require_approval(mesh, require)
        if approve is not None:
            found = await client.keys.approve(mesh, _new_key(found, mesh, approve))
        if refuse is not None:
            found = await client.keys.refuse(mesh, _new_key(found, mesh, refuse))
        return found

    found = relay_options.run(mesh, work)
    rows = [(each.name, each.role, each.node, each.former, format_utc(each.at_ns)) for each in found.waiting]
    kept = "wait for approval" if found.required else "have their rights at once"
    shown = table(("name", "role", "new key", "former key", "since"), rows) if rows else Text("no key waits")
    value = {"mesh": mesh, "required": found.required, "waiting": found.waiting}
    output.result(value, Group(Text(f"new keys of members of {mesh} {kept}"), shown))


def _new_key(found: KeyApprovals, mesh: str, given: str) -> str:
    """Return the waiting key that is given: by member name, node id or the digits of the id."""
    key = node_from_hex(given) if is_key_digits(given) else given
    for each in found.waiting:
        if key in (each.name, each.node):
            return each.node
    raise error("rotation_not_waiting", node=given, mesh=mesh)
