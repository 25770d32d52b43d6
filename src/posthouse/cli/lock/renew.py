"""`posthouse lock renew`: more time for a lock that is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.lock.options import LeaseS, Resource, Token, grant_line, lock_value
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, LockGrant


def renew(
    resource: Resource,
    token: Token,
    /,
    *,
    lease_s: LeaseS = 30.0,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Renew the lease of a lock from now on; the token stays. A lease that has ended cannot be renewed.

    For example:

        posthouse lock renew db/main 17 --lease-s 60
        posthouse lock renew db/main 17 --json
    """

    async def work(client: Client) -> LockGrant:
        return await client.locks.renew(resource, token, lease_ms=round(lease_s * 1000))

    grant = reach.visit(mesh, work)
    output.answer(lock_value(grant), grant_line(grant))
