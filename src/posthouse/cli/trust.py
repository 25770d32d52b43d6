"""`posthouse trust`: accept the key that a relay or a member has now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client


def trust(
    who: Annotated[str, Parameter(help="A relay (HOST:PORT or URL), or the name of a member.")],
    /,
    *,
    node: Annotated[str | None, Parameter(help="The key it must have; without it the one it shows now.")] = None,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Pin the key of a relay or a member anew, after a change that was meant.

    Compare the key on another way first, and give it with --node: then nobody in between can show another one.

    For example:

        posthouse trust relay.example:7420 --node ed25519:03a1...31b8
        posthouse trust bob --mesh team --json
    """
    is_relay = ":" in who or "." in who  # no member name has either
    before, now = _trust_relay(who, node, reach) if is_relay else _trust_member(who, node, mesh, reach)
    value = {"relay" if is_relay else "member": who, "node": now, "before": before}
    change = "as before" if before == now else f"instead of {before}" if before else "for the first time"
    output.answer(value, f"{who} is trusted with the key {now}, {change}")


def _trust_relay(who: str, node: str | None, reach: Reach) -> tuple[str | None, str]:
    import asyncio

    from posthouse.client import Client, Pins, parse_relay_url
    from posthouse.keys import NodeKey, public_key

    options = reach.options()
    url = parse_relay_url(who, allow_plain=options.allow_plain)

    async def ask() -> str:
        # a key of its own and no pins: asking who a relay is says nothing about this node
        async with Client(url, NodeKey.generate(), pins=Pins(None), options=options) as client:
            return await client.identify()

    found = node or asyncio.run(ask())
    public_key(found)
    return Pins.of_home().trust_relay(url.origin, found), found


def _trust_member(name: str, node: str | None, mesh: str, reach: Reach) -> tuple[str | None, str]:
    async def work(client: Client) -> tuple[str | None, str]:
        if node is not None:
            found = {member.name: member.node for member in await client.meshes.unpinned_members(mesh)}.get(name)
            if found != node:
                raise error("member_key_changed", mesh=mesh, name=name, pinned=node, found=str(found))
        return await client.meshes.trust_member(mesh, name)

    return reach.visit(mesh, work)
