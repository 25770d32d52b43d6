"""`posthouse lock`: acquire, renew, release, break, watch and list locks of a relay, and run a command under one.

A lock is a lease with a fencing token. `acquire` does not renew, so the lease must cover the work; `run` renews
while the command runs and ends the command before another client can get the lock (lock_child).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.completers import PATIENCE_S, Names, typed
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, MeshOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import error

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from posthouse.client import Client, LockGrant, LockStatus
    from posthouse.client.locks.lock_calls import LockMode
    from posthouse.model.lock_api import LocksBroken, LockSummary


def complete_locks(context: CompletionContext) -> Names:
    """Return the names of locks that the relay knows, for a shell."""
    import asyncio

    options = MeshOptions(relay=typed(context, "--relay"), mesh=typed(context, "--mesh"))

    async def ask() -> list[LockSummary]:
        async with asyncio.timeout(PATIENCE_S), options.client(options.name) as client:
            return await _list_locks(client, options.name)

    return [(lock.resource, "held" if lock.held else "free") for lock in asyncio.run(ask())]


Resource = Annotated[str, Parameter(completer=complete_locks, help="Name of the lock: any text of 1 to 512 bytes.")]
Token = Annotated[int, Parameter(validator=Number(gte=1), help="The fencing token that `acquire` returned.")]
LeaseS = Annotated[
    float, Parameter(validator=Number(gte=1, lte=600), help="Seconds until the lock expires unless it is renewed.")
]
WaitS = Annotated[
    float | None, Parameter(validator=Number(gte=0, lte=600), show_default=False, help="Seconds to wait for the lock.")
]


Session = Annotated[
    str | None,
    Parameter(show_default=False, help="Session that holds the lock; sessions of one key wait for each other."),
]
Also = Annotated[
    tuple[str, ...],
    Parameter(show_default=False, negative=(), help="Another lock of the same grant. Repeatable, up to 63."),
]
Tree = Annotated[bool, Parameter(negative=(), show_default=False, help="Also lock all names below RESOURCE/.")]
Shared = Annotated[bool, Parameter(negative=(), show_default=False, help="Share the lock with others that share it.")]


def lock_value(lock: LockStatus | LockSummary | LocksBroken) -> dict[str, Any]:
    """Return all fields of a lock as JSON values; the relay omits those that have their default."""
    leases = ("holders", "broken")
    fields = msgspec.structs.asdict(lock)
    return fields | {name: [msgspec.structs.asdict(each) for each in fields[name]] for name in leases if name in fields}


def grant_line(grant: LockGrant) -> str:
    """Return a grant as one line of text."""
    names = ", ".join((grant.resource, *grant.also))
    session = f"  session {grant.session}" if grant.session else ""
    return f"{names}  token {grant.token}  for {grant.lease_ms / 1000:g} s{session}"


def acquire(
    resource: Resource,
    /,
    *,
    lease_s: LeaseS = 30.0,
    wait_s: WaitS = None,
    request_id: Annotated[
        str | None, Parameter(help="Id of the request: a retry with the same id returns the same grant.")
    ] = None,
    session: Session = None,
    tree: Tree = False,
    shared: Shared = False,
    also: Also = (),
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Acquire a lock. It is not renewed, so the lease must cover the work; to run a command use `lock run`.

    For example:

        posthouse lock acquire db/main --lease-s 60
        TOKEN=$(posthouse lock acquire db/main --wait-s 30 --json | jq .token)
        posthouse lock acquire src/api --tree --also docs/api.md
    """
    from posthouse.model.clock import system_clock
    from posthouse.model.ulid import UlidGenerator

    # a retry must come from the same session, or it would wait for its own first grant
    used = session if session is not None else request_id or UlidGenerator(system_clock()).mint()

    async def work(client: Client) -> LockGrant:
        return await client.locks.acquire(
            resource,
            lease_ms=round(lease_s * 1000),
            wait_ms=round((wait_s or 0) * 1000),
            request_id=request_id,
            session=used,
            mode="shared" if shared else "exclusive",
            tree=tree,
            also=also,
        )

    grant = mesh_options.run(mesh_options.name, work)
    output.result(grant, grant_line(grant))


def renew(
    resource: Resource,
    token: Token,
    /,
    *,
    lease_s: LeaseS = 30.0,
    session: Session = None,
    also: Also = (),
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Extend the lease of a lock, counted from now; the token stays the same. An expired lease cannot be renewed.

    For example:

        posthouse lock renew db/main 17 --lease-s 60
        posthouse lock renew db/main 17 --json
    """

    async def work(client: Client) -> LockGrant:
        return await client.locks.renew(resource, token, lease_ms=round(lease_s * 1000), session=session, also=also)

    grant = mesh_options.run(mesh_options.name, work)
    output.result(grant, grant_line(grant))


def release(
    resource: Resource,
    token: Token,
    /,
    *,
    session: Session = None,
    also: Also = (),
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Release a lock; the client that has waited longest gets it next.

    For example:

        posthouse lock release db/main 17
        posthouse lock release db/main 17 --mesh team --json
    """

    async def work(client: Client) -> None:
        await client.locks.release(resource, token, session=session, also=also)

    mesh_options.run(mesh_options.name, work)
    names = ", ".join((resource, *also))
    output.result({"resource": resource, "token": token, "released": True}, f"{names}  released")


def break_lock(
    resource: Resource,
    /,
    *,
    token: Annotated[int | None, Parameter(show_default=False, help="Break only the lease with this token.")] = None,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """End the lease of another holder, such as a removed member; for admins of the mesh.

    The holder is not asked and may still be writing: only writes that check the fencing token are safe from it.

    For example:

        posthouse lock break db/main
        posthouse lock break db/main --token 17 --mesh team --json
    """

    async def work(client: Client) -> LocksBroken:
        return await client.locks.break_lock(resource, token=token)

    answer = mesh_options.run(mesh_options.name, work)
    lines = [f"{resource}  broken  token {each.token}  held by {each.owner}" for each in answer.broken]
    output.result(lock_value(answer), "\n".join(lines))


def inspect(
    resource: Resource,
    /,
    *,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show the holders of a lock and the time left; for a free lock show the last token.

    The token is shown to the key that holds the lock and to admins; others see 0.

    For example:

        posthouse lock inspect db/main
        posthouse lock inspect db/main --mesh team --json
    """

    async def work(client: Client) -> LockStatus:
        return await client.locks.inspect(resource)

    status = mesh_options.run(mesh_options.name, work)
    output.result(lock_value(status), _status_text(status))


def _status_text(status: LockStatus) -> str:
    state = f"held by {status.owner} for {status.remaining_ms / 1000:g} s" if status.held else "free"
    waiting = f"  {status.waiting} waiting" if status.waiting else ""
    lines = [f"{status.resource}  {state}  token {status.token}{waiting}"]
    if len(status.holders) > 1 or any(each.tree or each.mode == "shared" for each in status.holders):
        lines += [
            f"  {each.mode}{' tree' if each.tree else ''} {each.resource}  {each.owner}"
            f"  for {each.remaining_ms / 1000:g} s  token {each.token}"
            for each in status.holders
        ]
    return "\n".join(lines)


def watch(
    resource: Resource,
    /,
    *,
    count: Annotated[
        int | None, Parameter(validator=Number(gte=1), show_default=False, help="Stop after this many states.")
    ] = None,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show a lock now and after each change of its holders, until Ctrl-C; after rapid changes only the newest state.

    For example:

        posthouse lock watch db/main
        posthouse lock watch db/main --count 2 --json
    """

    async def work(client: Client) -> None:
        shown = 0
        async for status in client.locks.watch(resource):
            output.result(lock_value(status), _status_text(status))
            shown += 1
            if shown == count:
                return

    mesh_options.run(mesh_options.name, work)


async def _list_locks(client: Client, mesh: str) -> list[LockSummary]:
    page = await client.locks.list(mesh=mesh)
    locks = list(page.locks)
    while page.cursor is not None:
        page = await client.locks.list(mesh=mesh, cursor=page.cursor)
        locks += page.locks
    return locks


def ls(
    *,
    held: Annotated[bool, Parameter(negative=(), show_default=False, help="Only locks that are held now.")] = False,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """List the locks of a mesh, including free ones, which keep their last token.

    For example:

        posthouse lock ls
        posthouse lock ls --held --mesh team --json
    """
    mesh = mesh_options.name

    found = mesh_options.run(mesh, lambda client: _list_locks(client, mesh))
    locks = [lock for lock in found if lock.held or not held]
    rows = [
        (each.resource, _state(each), each.token, f"{each.remaining_ms / 1000:g}", each.owner or "") for each in locks
    ]
    columns = ("resource", "state", "token", "seconds", "owner")
    output.result({"mesh": mesh, "locks": [lock_value(lock) for lock in locks]}, table(columns, rows))


def _state(lock: LockSummary) -> str:
    if not lock.held:
        return "free"
    return f"{'shared' if lock.mode == 'shared' else 'held'}{' tree' if lock.tree else ''}"


def run(
    resource: Resource,
    /,
    *command: Annotated[str, Parameter(help="The command, after `--`.", show_default=False)],
    lease_s: LeaseS = 30.0,
    wait_s: WaitS = None,
    tree: Tree = False,
    shared: Shared = False,
    also: Also = (),
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> int:
    r"""Run a command while holding a lock and exit with its exit code; without --wait-s wait for the lock indefinitely.

    A second `lock run` with the same key waits, as one with another key would.

    The lease is renewed while the command runs. If the lease is lost, the command and its process group are ended
    before another client can get the lock: with SIGTERM, then SIGKILL after 1/25 of the lease. The environment variable
    POSTHOUSE_FENCING_TOKEN has the fencing token; send it with every protected write.

    For example:

        posthouse lock run db/main -- ./migrate.sh
        posthouse lock run deploy --wait-s 0 --lease-s 60 -- \
            sh -c 'deploy --token "$POSTHOUSE_FENCING_TOKEN"'
    """
    from posthouse.cli.lock_child import run_command

    if not command:
        raise error("usage", text="no command was given; write it after `--`")

    async def work(client: Client) -> int:
        mode: LockMode = "shared" if shared else "exclusive"
        async with client.lock(resource, lease_s=lease_s, wait_s=wait_s, mode=mode, tree=tree, also=also) as held:
            output.note(f"{resource}  token {held.token}")
            return await run_command(command, resource, held.token, grace_s=lease_s / 25)

    return mesh_options.run(mesh_options.name, work)


app = noun("lock", "Use locks of a relay: leases with fencing tokens.")
app.command(acquire, name="acquire")
app.command(renew, name="renew")
app.command(release, name="release")
app.command(break_lock, name="break")
app.command(inspect, name="inspect")
app.command(watch, name="watch")
app.command(ls, name="ls")
app.command(run, name="run")
