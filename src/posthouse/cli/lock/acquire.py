"""`posthouse lock acquire`: take a lock and keep it until it is released or its lease ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.lock.options import LeaseS, Resource, WaitS, grant_line, lock_value
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, LockGrant


def acquire(
    resource: Resource,
    /,
    *,
    lease_s: LeaseS = 30.0,
    wait_s: WaitS = None,
    request_id: Annotated[
        str | None, Parameter(help="Repeat it to retry: the same grant is told again, never a second one made.")
    ] = None,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Acquire a lock; nothing renews it, so the lease must cover the work. To run a command use `lock run`.

    For example:

        posthouse lock acquire db/main --lease-s 60
        TOKEN=$(posthouse lock acquire db/main --wait-s 30 --json | jq .token)
    """

    async def work(client: Client) -> LockGrant:
        return await client.locks.acquire(
            resource, lease_ms=round(lease_s * 1000), wait_ms=round((wait_s or 0) * 1000), request_id=request_id
        )

    grant = reach.visit(mesh, work)
    output.answer(lock_value(grant), grant_line(grant))
