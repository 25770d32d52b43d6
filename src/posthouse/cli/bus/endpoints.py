"""`posthouse bus endpoints`: who can be reached on this bus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.bus.traffic import count_mail
from posthouse.cli.commands import noun
from posthouse.cli.console import PLAIN, Output, table

if TYPE_CHECKING:
    from posthouse.bus import Bus

_SUMMARY = """List, register and unregister endpoints.

For example:

    posthouse bus endpoints
    posthouse bus endpoints add agents.archive --json
"""

app = noun("endpoints", _SUMMARY)


@app.default
def endpoints(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """List every endpoint with its owner and the depth of its mailbox.

    For example:

        posthouse bus endpoints
        posthouse bus endpoints --json
    """
    found = visit(directory, output, _list)
    if output.json:
        for entry in found:
            output.answer(entry, "")
    elif found:
        columns = ("subject", "owner", "depth", "mailbox", "registered_at")
        rows = [tuple("" if entry[name] is None else entry[name] for name in columns) for entry in found]
        output.answer(None, table(columns, rows))
    else:
        output.note("no endpoint is registered")


@app.command(name="add")
def add(
    subject: Annotated[str, Parameter(help="A subject, or a pattern that ends in `>`.")],
    /,
    *,
    owner: Annotated[str | None, Parameter(help="Who it belongs to; others are refused.")] = None,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Register an endpoint, so that mail for it is kept.

    For example:

        posthouse bus endpoints add team.builder
        posthouse bus endpoints add 'team.>' --owner me
    """
    made = visit(directory, output, lambda bus: bus.register_endpoint(subject, owner=owner))
    value = {"subject": made.subject, "owner": made.owner, "mailbox": made.hash, "registered_at": made.registered_at}
    output.answer(value, f"{made.subject}  mailbox {made.hash}")


@app.command(name="remove")
def remove(
    subject: Annotated[str, Parameter(help="The endpoint.")],
    /,
    *,
    force: Annotated[bool, Parameter(negative=(), help="Also when it has unread mail.")] = False,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Unregister an endpoint; unread mail needs --force.

    For example:

        posthouse bus endpoints remove team.builder
        posthouse bus endpoints remove team.builder --force
    """
    visit(directory, output, lambda bus: bus.unregister_endpoint(subject, force=force))
    output.answer({"subject": subject, "removed": True}, f"{subject} is unregistered")


async def _list(bus: Bus) -> list[dict[str, Any]]:
    return [
        {
            "subject": endpoint.subject,
            "owner": endpoint.owner,
            "depth": count_mail(bus.path, endpoint.hash),
            "mailbox": endpoint.hash,
            "registered_at": endpoint.registered_at,
        }
        for endpoint in await bus.list_endpoints()
    ]
