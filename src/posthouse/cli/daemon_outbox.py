"""`posthouse daemon outbox`: list, inspect, requeue, drop and withdraw the rows of the outbox.

A requeued message goes to the same destination under a new client_message_id; the aborted row keeps the old one,
which cannot be used again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions, read_file
from posthouse.cli.output import PLAIN, Output, short_node, table
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client.daemon import OutboxChain, OutboxRow


_SWITCH = Parameter(negative=(), show_default=False)


def ls(
    *,
    failed: Annotated[bool, _SWITCH, Parameter(help="Only dead rows: refused for good, or expired.")] = False,
    pending: Annotated[bool, _SWITCH, Parameter(help="Only rows that wait to be sent.")] = False,
    inflight: Annotated[bool, _SWITCH, Parameter(help="Only rows that are sent but not acknowledged.")] = False,
    done: Annotated[bool, _SWITCH, Parameter(help="Only rows that the relay has stored.")] = False,
    aborted: Annotated[bool, _SWITCH, Parameter(help="Only rows that were requeued or dropped.")] = False,
    to: Annotated[str | None, Parameter(help="Only rows to this member or `#topic`.")] = None,
    after: Annotated[str | None, Parameter(help="Only rows after this one, oldest first.")] = None,
    before: Annotated[str | None, Parameter(help="Only rows before this one.")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="Maximum number to show.")] = 50,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """List the rows of the outbox, newest first; if there are more, the last line says how to continue.

    For example:

        posthouse daemon outbox list
        posthouse daemon outbox list --failed --json
        posthouse daemon outbox list --to bob --before 01JQ8Z5N0000000000000000AB
    """
    given = {"dead": failed, "pending": pending, "inflight": inflight, "done": done, "aborted": aborted}
    chosen = [status for status, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise error("usage", text="give one of --failed, --pending, --inflight, --done, --aborted")
    with daemon_options.client() as daemon:
        rows = daemon.outbox(status=chosen[0] if chosen else None, to=to, after=after, before=before, limit=limit)
    shown = [
        (
            row.id,
            row.status,
            row.state,
            row.enqueued_at,
            row.attempts,
            _shown_destination(row.destination),
            row.last_error or "",
        )
        for row in rows
    ]
    output.result(
        {"items": rows, "next": rows.next},
        table(("id", "status", "state", "enqueued", "attempts", "to", "last error"), shown),
    )
    if rows.next is not None:
        output.note(f"more: {'--before' if after is None else '--after'} {rows.next}")


def _shown_destination(destination: str | None) -> str:
    if destination is None or destination.startswith("#"):
        return destination or "-"
    return short_node(destination)


def inspect(
    id: Annotated[str, Parameter(help="Row id, client_message_id or event id.")],  # noqa: A002 - the word of the API
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Show one outbox row and the rows it was requeued from and to, oldest first.

    For example:

        posthouse daemon outbox inspect 01JQ8Z5N0000000000000000AB
    """
    with daemon_options.client() as daemon:
        found = daemon.outbox_row(id)
    output.result(found, _lines(found))


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


def requeue(
    id: Annotated[str, Parameter(help="Row id, client_message_id or event id.")],  # noqa: A002 - the word of the API
    /,
    *,
    new_client_id: Annotated[str | None, Parameter(help="client_message_id of the new row.")] = None,
    auto: Annotated[bool, Parameter(negative=(), show_default=False, help="Let the daemon choose the new id.")] = False,
    patch_payload: Annotated[
        Path | None, Parameter(help="Send the text in this file (`-`: stdin) instead of the old text.")
    ] = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Abort a dead or pending row and queue its message again, to the same destination, under a new id.

    For example:

        posthouse daemon outbox requeue 01JQ8Z5N0000000000000000AB --auto
        posthouse daemon outbox requeue build-7 --new-client-id build-7b
        posthouse daemon outbox requeue build-7 --auto --patch-payload fixed.txt
    """
    if (new_client_id is None) != auto:
        raise error("usage", text="give either --new-client-id ID or --auto")
    text = None if patch_payload is None else _read_patch(patch_payload)
    with daemon_options.client() as daemon:
        made = daemon.requeue(id, new_client_message_id=new_client_id, message=text)
    output.result(made, f"{made.aborted_row_id} aborted, {made.new_row_id} queued as {made.new_client_message_id}")


def _read_patch(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as failure:
        raise error("usage", text=f"{path} is not UTF-8 text: {failure}") from failure


def drop(
    id: Annotated[str, Parameter(help="Row id, client_message_id or event id.")],  # noqa: A002 - the word of the API
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Abort a dead or pending row permanently; its client_message_id cannot be used again.

    For example:

        posthouse daemon outbox drop 01JQ8Z5N0000000000000000AB
    """
    with daemon_options.client() as daemon:
        dropped = daemon.drop(id)
    output.result({"aborted_row_id": dropped.aborted_row_id}, f"{dropped.aborted_row_id} aborted")


def withdraw(
    id: Annotated[str, Parameter(help="Row id, client_message_id or event id.")],  # noqa: A002 - the word of the API
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Take back a message: readers that have not read it no longer see it; others get a notice.

    For example:

        posthouse daemon outbox withdraw build-7
    """
    with daemon_options.client() as daemon:
        answer = daemon.withdraw(id)
    effects = {"dropped": "it was not sent", "withdrawing": "its readers are notified"}
    output.result(answer, f"{answer['message_id']} withdrawn: {effects[str(answer['state'])]}")


app = noun("outbox", "List the messages sent from this host; requeue, drop or withdraw them.")
app.command(ls, name="list")
app.command(ls, name="ls", show=False)  # as in the other groups
app.command(inspect, name="inspect")
app.command(requeue, name="requeue")
app.command(drop, name="drop")
app.command(withdraw, name="withdraw")
