"""`posthouse mesh`: create, open and close meshes, and manage their members, access, topics and blocks.

The listing verbs apply a change first if one is given, then list. An access row narrows what a role allows, never
widens it. posthouse.cli.mesh_invites has the verbs about invites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from posthouse.cli.commands import noun
from posthouse.cli.mesh_invites import Mesh, invite, invites
from posthouse.cli.mesh_limits import delete, limits, resume, suspend, usage
from posthouse.cli.mesh_rotations import rotations
from posthouse.cli.mesh_rules import rules
from posthouse.cli.options import DEFAULT_RELAY, DaemonOptions, RelayOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.peers import show_members
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Access, Client, Member


def create(
    mesh: Annotated[str, Parameter(help="Name of the new mesh: letters, digits, `_` and `-`.")],
    /,
    *,
    open: Annotated[  # noqa: A002 - the name of the option
        bool, Parameter(negative=(), show_default=False, help="Treat every key that authenticates as a member.")
    ] = False,
    name: Annotated[str | None, Parameter(help="Name of this node in the mesh. Default: admin.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Create a mesh on a relay with this node as its first admin, and remember the relay for later commands.

    For example:

        posthouse mesh create team
        posthouse mesh create lobby --open --name alice --relay relay.example:7420
    """
    from posthouse.client import Membership, Memberships

    async def work(client: Client) -> dict[str, Any]:
        made = await client.meshes.create(mesh, is_open=open, name=name)
        Memberships.of_home().remember(mesh, Membership(str(client.url), str(client.relay), name))
        return made | {"relay": str(client.url)}

    made = relay_options.run(None, work)
    kind = "open to any key" if open else "for invited nodes"
    output.result(made, f"created mesh {mesh} on {made['relay']}, {kind}")
    output.note(f"create an invite with `posthouse mesh invite {mesh}`")


def close(mesh: Mesh, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """Close a mesh: from now on only its members can use it. Nodes that are not members lose access at once.

    For example:

        posthouse mesh close main
        posthouse mesh close lobby --relay relay.example:7420 --json
    """
    _set_open(mesh, False, relay_options, output)


def open_(mesh: Mesh, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """Open a mesh to every key that authenticates. The mesh main of a relay that other machines can reach stays closed.

    For example:

        posthouse mesh open main
        posthouse mesh open lobby --relay relay.example:7420 --json
    """
    _set_open(mesh, True, relay_options, output)


def _set_open(mesh: str, is_open: bool, relay_options: RelayOptions, output: Output) -> None:
    async def work(client: Client) -> dict[str, Any]:
        return await client.meshes.set_open(mesh, is_open)

    changed = relay_options.run(mesh, work)
    output.result(changed, f"mesh {mesh} is {'open to every key' if is_open else 'closed to all but its members'}")


def ls(*, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """List the meshes that this node has joined or created; with --relay those it may read on that relay.

    For example:

        posthouse mesh ls
        posthouse mesh ls --relay 127.0.0.1:7420 --json
    """
    from posthouse.client import Memberships

    if relay_options.relay is not None:
        _list_relay(relay_options, output)
        return
    known = Memberships.of_home().all()
    value = {"meshes": [{"name": mesh, "relay": m.relay, "member_name": m.name} for mesh, m in known.items()]}
    rows = [(mesh, each.name or "-", each.relay) for mesh, each in known.items()]
    output.result(value, table(("mesh", "own name", "relay"), rows))


def _list_relay(relay_options: RelayOptions, output: Output) -> None:
    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.meshes.readable()

    meshes = relay_options.run(None, work)
    rows = [[str(value) for value in each.values()] for each in meshes]
    output.result({"meshes": meshes}, table(list(meshes[0]) if meshes else ("mesh",), rows))


def members(
    mesh: Mesh,
    /,
    *,
    add: Annotated[str | None, Parameter(help="Add this node id, or change its name or role.")] = None,
    name: Annotated[str | None, Parameter(help="Name of the node given with --add.")] = None,
    role: Annotated[
        Literal["reader", "member", "admin"], Parameter(help="Role of the node given with --add.")
    ] = "member",
    remove: Annotated[str | None, Parameter(help="Remove this member (name or node id).")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the members of a mesh as `posthouse peers` does; with an option, admins first change them.

    The relay knows the members. Their presence and agents come from the daemon of this host, if it is in the mesh.

    For example:

        posthouse mesh members team
        posthouse mesh members team --add ed25519:03a1... --name bob --role reader
        posthouse mesh members team --remove bob --json
    """
    if add is not None and name is None:
        raise error("usage", text="--add needs --name")

    async def work(client: Client) -> list[Member]:
        if add is not None and name is not None:
            await client.meshes.add_member(mesh, add, name, role)
        if remove is not None:
            await client.meshes.remove_member(mesh, await client.meshes.resolve(remove, mesh))
        return await client.meshes.members(mesh)

    found = relay_options.run(mesh, work)
    known = {} if relay_options.relay is not None else _known_to_daemon(mesh)
    shown = [known.get(each.node, {}) | msgspec.to_builtins(each) for each in found]
    show_members({"mesh": mesh, "members": shown}, mesh, shown, output)


def _known_to_daemon(mesh: str) -> dict[str, dict[str, Any]]:
    """Return the daemon's view of the nodes of a mesh; empty if no daemon runs, or it is not in this mesh."""
    try:
        with DaemonOptions(mesh=mesh).client() as daemon:
            return {peer["node"]: peer for peer in daemon.peers()["peers"]}
    except PosthouseError:
        return {}


Verdict = Literal["allow", "deny"]
ANY_NODE = "*"


def access(
    mesh: Mesh,
    /,
    *,
    node: Annotated[str | None, Parameter(name="--set", help="Set the row of this member, node id, or `*`.")] = None,
    read: Annotated[Verdict, Parameter(help="Permission to read.")] = "allow",
    write: Annotated[Verdict, Parameter(help="Permission to publish.")] = "allow",
    lock: Annotated[Verdict, Parameter(help="Permission to use locks.")] = "allow",
    clear: Annotated[str | None, Parameter(help="Remove the row of this member, node id, or `*`.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the access rows of a mesh; with an option, first set or remove a row (admins only).

    A row narrows what a role allows, never widens it. The row of a node replaces the row of all nodes (`*`).

    For example:

        posthouse mesh access team
        posthouse mesh access team --set bob --write deny
        posthouse mesh access team --clear '*' --json
    """

    async def work(client: Client) -> list[Access]:
        if node is not None:
            target = await _resolve_node(client, node, mesh)
            await client.meshes.set_access(mesh, target, read=read, write=write, lock=lock)
        if clear is not None:
            await client.meshes.clear_access(mesh, await _resolve_node(client, clear, mesh))
        return await client.meshes.access(mesh)

    found = relay_options.run(mesh, work)
    rows = [(each.node, each.read, each.write, each.lock) for each in found]
    output.result({"mesh": mesh, "access": found}, table(("node", "read", "write", "lock"), rows))


async def _resolve_node(client: Client, given: str, mesh: str) -> str:
    return given if given == ANY_NODE else await client.meshes.resolve(given, mesh)


def topics(
    mesh: Mesh,
    /,
    *,
    create: Annotated[str | None, Parameter(help="Create this topic.")] = None,
    remove: Annotated[str | None, Parameter(help="Remove this topic.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the topics of a mesh; with an option, first create or remove one.

    For example:

        posthouse mesh topics team
        posthouse mesh topics team --create alerts.disk --json
    """

    async def work(client: Client) -> list[str]:
        if create is not None:
            await client.meshes.create_topic(mesh, create)
        if remove is not None:
            await client.meshes.remove_topic(mesh, remove)
        return await client.meshes.topics(mesh)

    found = relay_options.run(mesh, work)
    output.result({"mesh": mesh, "topics": found}, table(("topic",), [(each,) for each in found]))


def subscriptions(
    mesh: Mesh,
    /,
    *,
    add: Annotated[str | None, Parameter(help="Subscribe to topics that match this pattern.")] = None,
    remove: Annotated[str | None, Parameter(help="End the subscription with this pattern.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the topic patterns that this node subscribes to; with an option, first add or remove one.

    For example:

        posthouse mesh subscriptions team --add 'alerts.>'
        posthouse mesh subscriptions team --remove 'alerts.>' --json
    """

    async def work(client: Client) -> list[str]:
        if add is not None:
            await client.meshes.subscribe(mesh, add)
        if remove is not None:
            await client.meshes.unsubscribe(mesh, remove)
        return await client.meshes.subscriptions(mesh)

    found = relay_options.run(mesh, work)
    output.result({"mesh": mesh, "subscriptions": found}, table(("pattern",), [(each,) for each in found]))


def blocks(
    mesh: Mesh,
    /,
    *,
    add: Annotated[str | None, Parameter(help="Block this member (name or node id).")] = None,
    remove: Annotated[str | None, Parameter(help="Unblock this member (name or node id).")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the nodes that this node blocks; with an option, first block or unblock a member.

    Blocked nodes are not notified.

    For example:

        posthouse mesh blocks team --add mallory
        posthouse mesh blocks team --remove mallory --json
    """

    async def work(client: Client) -> list[str]:
        if add is not None:
            await client.meshes.block(mesh, await client.meshes.resolve(add, mesh))
        if remove is not None:
            await client.meshes.unblock(mesh, await client.meshes.resolve(remove, mesh))
        return await client.meshes.blocks(mesh)

    found = relay_options.run(mesh, work)
    output.result({"mesh": mesh, "blocks": found}, table(("node",), [(each,) for each in found]))


app = noun("mesh", "Create meshes, invite nodes, and manage members, access, limits, rules, topics and blocks.")
app.command(create, name="create")
app.command(close, name="close")
app.command(open_, name="open")
app.command(invite, name="invite")
app.command(invites, name="invites")
app.command(ls, name="ls")
app.command(members, name="members")
app.command(access, name="access")
app.command(rules, name="rule")
app.command(rotations, name="rotations")
app.command(limits, name="limits")
app.command(usage, name="usage")
app.command(suspend, name="suspend")
app.command(resume, name="resume")
app.command(delete, name="delete")
app.command(topics, name="topics")
app.command(subscriptions, name="subscriptions")
app.command(blocks, name="blocks")
