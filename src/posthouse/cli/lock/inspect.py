"""`posthouse lock inspect`: who holds a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.lock.options import Resource, lock_value
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, LockStatus


def inspect(
    resource: Resource,
    /,
    *,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Show who holds a lock and for how long still; a free one shows its last token.

    For example:

        posthouse lock inspect db/main
        posthouse lock inspect db/main --mesh team --json
    """

    async def work(client: Client) -> LockStatus:
        return await client.locks.inspect(resource)

    status = reach.visit(mesh, work)
    state = f"held by {status.owner} for {status.remaining_ms / 1000:g} s" if status.held else "free"
    output.answer(lock_value(status), f"{resource}  {state}  token {status.token}")
