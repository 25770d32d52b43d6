"""`posthouse mesh ls`: the meshes of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def ls(*, reach: Reach = DEFAULT_REACH, output: Output = PLAIN) -> None:
    """List the meshes this node has joined or made from here; with --relay those it may read there.

    For example:

        posthouse mesh ls
        posthouse mesh ls --relay 127.0.0.1:7420 --json
    """
    from posthouse.client import Memberships

    if reach.relay is not None:
        _list_relay(reach, output)
        return
    known = Memberships.of_home().all()
    value = {"meshes": [{"name": mesh, "relay": m.relay, "member_name": m.name} for mesh, m in known.items()]}
    rows = [(mesh, each.name or "-", each.relay) for mesh, each in known.items()]
    output.answer(value, table(("mesh", "name here", "relay"), rows))


def _list_relay(reach: Reach, output: Output) -> None:
    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.meshes.readable()

    meshes = reach.visit(None, work)
    rows = [[str(value) for value in each.values()] for each in meshes]
    output.answer({"meshes": meshes}, table(list(meshes[0]) if meshes else ("mesh",), rows))
