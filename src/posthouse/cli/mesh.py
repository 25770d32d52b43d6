"""`posthouse mesh` and `posthouse join`: create meshes, invite, join, and manage members, access, topics and blocks.

The listing verbs change first if asked to, then list. An access row narrows what a role allows, never widens it. The
code of an invite is shown only to the relay whose key the invite names.
"""

from __future__ import annotations

import getpass
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.options import DEFAULT_RELAY, RelayOptions, key_path
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Access, Client, Invite, Member
    from posthouse.keys import NodeKey


#: The mesh, given first.
Mesh = Annotated[str, Parameter(help="The mesh.")]


def create(
    mesh: Annotated[str, Parameter(help="Its name: letters, digits, `_` and `-`.")],
    /,
    *,
    open: Annotated[  # noqa: A002 - the word of the wire
        bool, Parameter(negative=(), show_default=False, help="Let any key that authenticates be a member.")
    ] = False,
    name: Annotated[str | None, Parameter(help="The name of this node in it; without it `admin`.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
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

    made = relay_options.run(None, work)
    kind = "open to any key" if open else "for invited nodes"
    output.result(made, f"mesh {mesh} made on {made['relay']}, {kind}")
    output.note(f"invite others with `posthouse mesh invite {mesh}`")


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
    relay_options: RelayOptions = DEFAULT_RELAY,
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

    made = relay_options.run(mesh, work)
    value = {"invite": str(made), "mesh": made.mesh, "relay": made.relay, "role": role, "uses": uses}
    output.result(value | {"expires_s": expires_s}, str(made))


def join(
    invite: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="The invite, in quotes; `-` reads it from stdin.")
    ],
    /,
    *,
    name: Annotated[str | None, Parameter(help="Your name in the mesh; without it your login name.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Join a mesh by an invite; a key is made if there is none, and commands find the relay by the mesh from now on.

    The code of the invite is only shown to the relay that made it; another key at its address is refused.

    For example:

        posthouse join 'posthouse://relay.example:7420/team?relay=ed25519:03a1...31b8&code=Zk3...' --name bob
        posthouse join - < invite.txt
    """
    from posthouse.client import Membership, Memberships, parse_invite

    given = parse_invite(_read_invite(invite))
    joined = _join(given, name or _login_name(), relay_options)
    remembered = Membership(joined["url"], given.relay, joined.get("name"))
    before = Memberships.of_home().remember(given.mesh, remembered)
    output.result(joined, f"joined {given.mesh} as {joined.get('name')} ({joined.get('role')}) on {joined['url']}")
    if before is not None and before.node != given.relay:
        output.note(f"mesh {given.mesh} meant {before.relay} until now; use --relay for that one")


def _join(invite: Invite, name: str, relay_options: RelayOptions) -> dict[str, Any]:
    import asyncio

    from posthouse.client import Client

    # the invite says where and who the relay is; --relay only names another way to the same one
    url = invite.url if relay_options.relay is None else relay_options.url()
    client = Client(
        url, _own_key(relay_options), mesh=invite.mesh, relay_node=invite.relay, options=relay_options.options()
    )

    async def work(client: Client) -> dict[str, Any]:
        async with client:
            return await client.join(replace(invite, url=url), name) | {"url": url.origin}

    return asyncio.run(work(client))


def _own_key(relay_options: RelayOptions) -> NodeKey:
    from posthouse.keys import keyfile

    return keyfile.load_or_create(key_path(relay_options.key_file))


def _read_invite(invite: str) -> str:
    import sys

    return sys.stdin.read() if invite == "-" else invite


def _login_name() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", getpass.getuser())[:64] or "node"


def ls(*, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """List the meshes this node has joined or made from here; with --relay those it may read there.

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
    output.result(value, table(("mesh", "name here", "relay"), rows))


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
    add: Annotated[str | None, Parameter(help="List this node id, or change its name or role.")] = None,
    name: Annotated[str | None, Parameter(help="The name of the node that is listed.")] = None,
    role: Annotated[
        Literal["reader", "member", "admin"], Parameter(help="The role of the node that is listed.")
    ] = "member",
    remove: Annotated[str | None, Parameter(help="Take this member (name or node id) off the list.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the members of a mesh, after changing them if asked to; admins may change.

    For example:

        posthouse mesh members team
        posthouse mesh members team --add ed25519:03a107...31b8 --name bob --role reader
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
    rows = [(each.name or "-", each.role, each.node) for each in found]
    output.result({"mesh": mesh, "members": found}, table(("name", "role", "node"), rows))


Verdict = Literal["allow", "deny"]
EVERYBODY = "*"


def access(
    mesh: Mesh,
    /,
    *,
    node: Annotated[str | None, Parameter(name="--set", help="Set the row of this member, node id, or `*`.")] = None,
    read: Annotated[Verdict, Parameter(help="Whether it may read.")] = "allow",
    write: Annotated[Verdict, Parameter(help="Whether it may publish.")] = "allow",
    lock: Annotated[Verdict, Parameter(help="Whether it may lock.")] = "allow",
    clear: Annotated[str | None, Parameter(help="Remove the row of this member, node id, or `*`.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the access rows of a mesh, after changing one if asked to.

    A row narrows what a role allows, never widens it; a row of a node counts instead of that of everybody (`*`).

    For example:

        posthouse mesh access team
        posthouse mesh access team --set bob --write deny
        posthouse mesh access team --clear '*' --json
    """

    async def work(client: Client) -> list[Access]:
        if node is not None:
            who = await _resolve_node(client, node, mesh)
            await client.meshes.set_access(mesh, who, read=read, write=write, lock=lock)
        if clear is not None:
            await client.meshes.clear_access(mesh, await _resolve_node(client, clear, mesh))
        return await client.meshes.access(mesh)

    found = relay_options.run(mesh, work)
    rows = [(each.node, each.read, each.write, each.lock) for each in found]
    output.result({"mesh": mesh, "access": found}, table(("node", "read", "write", "lock"), rows))


async def _resolve_node(client: Client, who: str, mesh: str) -> str:
    return who if who == EVERYBODY else await client.meshes.resolve(who, mesh)


def topics(
    mesh: Mesh,
    /,
    *,
    create: Annotated[str | None, Parameter(help="Make this topic.")] = None,
    remove: Annotated[str | None, Parameter(help="Remove this topic.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the topics of a mesh, after making or removing one if asked to.

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
    """List the patterns this node is subscribed to, after changing them if asked to.

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
    remove: Annotated[str | None, Parameter(help="Take its messages again.")] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """List the nodes this node blocks, after changing them if asked to; the blocked are not told.

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


app = noun("mesh", "Make meshes, invite others, and say who may do what.")
app.command(create, name="create")
app.command(invite, name="invite")
app.command(ls, name="ls")
app.command(members, name="members")
app.command(access, name="access")
app.command(topics, name="topics")
app.command(subscriptions, name="subscriptions")
app.command(blocks, name="blocks")
