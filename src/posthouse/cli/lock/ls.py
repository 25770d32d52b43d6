"""`posthouse lock ls`: the locks of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.lock.options import lock_value
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.client.locks import LockSummary


def ls(
    *,
    held: Annotated[bool, Parameter(negative=(), show_default=False, help="Only those that are held now.")] = False,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List the locks of a mesh, free ones too: a name that was locked once keeps its last token.

    For example:

        posthouse lock ls
        posthouse lock ls --held --mesh team --json
    """

    async def work(client: Client) -> list[LockSummary]:
        page = await client.locks.list(mesh=mesh)
        locks = list(page.locks)
        while page.cursor is not None:
            page = await client.locks.list(mesh=mesh, cursor=page.cursor)
            locks += page.locks
        return locks

    locks = [lock for lock in reach.visit(mesh, work) if lock.held or not held]
    rows = [
        (each.resource, "held" if each.held else "free", each.token, f"{each.remaining_ms / 1000:g}", each.owner or "")
        for each in locks
    ]
    columns = ("resource", "state", "token", "seconds", "owner")
    output.answer({"mesh": mesh, "locks": [lock_value(lock) for lock in locks]}, table(columns, rows))
