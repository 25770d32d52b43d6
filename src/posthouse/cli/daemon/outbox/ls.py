"""`posthouse daemon outbox list`: what was sent from this host, and where it is."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.near import USUAL, Near
from posthouse.model.errors import error

_SWITCH = Parameter(negative=(), show_default=False)


def ls(
    *,
    failed: Annotated[bool, _SWITCH, Parameter(help="Only dead rows: refused for good, or too old.")] = False,
    pending: Annotated[bool, _SWITCH, Parameter(help="Only rows that wait.")] = False,
    inflight: Annotated[bool, _SWITCH, Parameter(help="Only rows that are sent and not answered.")] = False,
    done: Annotated[bool, _SWITCH, Parameter(help="Only rows that the relay has.")] = False,
    aborted: Annotated[bool, _SWITCH, Parameter(help="Only rows that were requeued or dropped.")] = False,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="How many at most.")] = 50,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """List the rows of the outbox, newest first.

    For example:

        posthouse daemon outbox list
        posthouse daemon outbox list --failed --json
    """
    asked = {"dead": failed, "pending": pending, "inflight": inflight, "done": done, "aborted": aborted}
    chosen = [status for status, is_asked in asked.items() if is_asked]
    if len(chosen) > 1:
        raise error("usage", text="give one of --failed, --pending, --inflight, --done, --aborted")
    with near.client() as daemon:
        rows = daemon.outbox(status=chosen[0] if chosen else None, limit=limit)
    shown = [
        (row.id, row.status, row.enqueued_at, row.attempts, _short(row.destination), row.last_error or "")
        for row in rows
    ]
    output.answer({"items": rows}, table(("id", "status", "enqueued", "attempts", "to", "last error"), shown))


def _short(destination: str | None) -> str:
    name = destination or "-"
    return name.removeprefix("ed25519:")[:8] if name.startswith("ed25519:") else name
