"""`posthouse lock release`: give a lock back before its lease ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.lock.options import Resource, Token
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def release(
    resource: Resource,
    token: Token,
    /,
    *,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Release a lock; whoever waits longest has it next.

    For example:

        posthouse lock release db/main 17
        posthouse lock release db/main 17 --mesh team --json
    """

    async def work(client: Client) -> None:
        await client.locks.release(resource, token)

    reach.visit(mesh, work)
    output.answer({"resource": resource, "token": token, "released": True}, f"{resource}  released")
