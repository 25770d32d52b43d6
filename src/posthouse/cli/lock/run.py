"""`posthouse lock run`: run a command while a lock is held, and end it when the lock is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.lock.options import LeaseS, Resource, WaitS
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client


def run(
    resource: Resource,
    /,
    *command: Annotated[str, Parameter(help="The command, after `--`.", show_default=False)],
    lease_s: LeaseS = 30.0,
    wait_s: WaitS = None,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> int:
    """Run a command while a lock is held, and return its exit code; without --wait-s it waits as long as it takes.

    The lease is renewed for as long as the command runs. When it is lost, the command and everything it started in its
    process group is ended before another can have the lock: SIGTERM, and SIGKILL after a twenty-fifth of the lease.
    The command finds its fencing token in POSTHOUSE_FENCING_TOKEN; send it with every protected write.

    For example:

        posthouse lock run db/main -- ./migrate.sh
        posthouse lock run deploy --wait-s 0 --lease-s 60 -- sh -c 'deploy --token "$POSTHOUSE_FENCING_TOKEN"'
    """
    from posthouse.cli.lock.child import run_command

    if not command:
        raise error("usage", text="no command was given; it stands behind `--`")

    async def work(client: Client) -> int:
        async with client.lock(resource, lease_s=lease_s, wait_s=wait_s) as held:
            output.note(f"{resource}  token {held.token}")
            return await run_command(command, resource, held.token, grace_s=lease_s / 25)

    return reach.visit(mesh, work)
