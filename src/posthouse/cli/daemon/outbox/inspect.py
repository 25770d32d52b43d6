"""`posthouse daemon outbox inspect`: one row, and the rows it was requeued from and to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near

if TYPE_CHECKING:
    from posthouse.client.daemon import OutboxChain, OutboxRow


def inspect(
    id: Annotated[str, Parameter(help="Its id, client_message_id or event id.")],  # noqa: A002 - the domain's word
    /,
    *,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Show one row of the outbox and its chain of requeues, oldest first.

    For example:

        posthouse daemon outbox inspect 01JQ8Z5N0000000000000000AB
    """
    with near.client() as daemon:
        found = daemon.outbox_row(id)
    output.answer(found, _lines(found))


def _lines(found: OutboxChain) -> str:
    import msgspec

    fields = {name: value for name, value in msgspec.structs.asdict(found.row).items() if value is not None}
    lines = [f"{name:<20}{value}" for name, value in fields.items()]
    if len(found.chain) > 1:
        lines += ["", "requeued:", *(_step(row, found.row) for row in found.chain)]
    return "\n".join(lines)


def _step(row: OutboxRow, this: OutboxRow) -> str:
    mark = "*" if row.id == this.id else " "
    return f"{mark} {row.id}  {row.status}  {row.client_message_id}"
